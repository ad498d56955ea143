# Tells what happens to files, until whoever asked goes away.
use strict;

our (%errno, %open, $end_of_box);

my %event = (
  modify => 0x2, attributes => 0x4, moved_from => 0x40, moved_to => 0x80, create => 0x100, delete => 0x200,
  delete_self => 0x400, overflow => 0x4000, ignored => 0x8000, directory => 0x40000000,
);
my $interest = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400;
my ($only_directory, $dont_follow) = (0x01000000, 0x02000000);
my $most_watches = 10_000;

# By number of the kernel: the path of the directory, whether all in it is of interest or only some names, whether what
# is below is, too, and whether it was named by the caller.
my %watches;
my $inotify;
my %from_temporary;

sub watch_files {
  my ($recursive, @paths) = @_;
  $inotify = kernel('inotify_init1', $open{close_on_exec} | $open{no_wait});
  fail($paths[0]) if $inotify < 0;
  watch_named($_, $recursive) for @paths;
  record('subscribed');
  send_now();
  my $changes = handle_of($inotify, '<');
  while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $inotify, $end_of_box // ();
    next if select($ready, undef, undef, undef) < 0;
    return if vec($ready, 0, 1) || defined $end_of_box && vec($ready, $end_of_box, 1);
    my $got = sysread $changes, my $buffer, 65536;
    tell_all($buffer) if $got;
    send_now();
  }
}

# A file is watched through its directory: it may be replaced by another of its name.
sub watch_named {
  my ($path, $recursive) = @_;
  my $seen = look(at_working_directory, $path, 0) or fail($path);
  my $directory = is_directory($seen) ? $path : directory_of($path);
  my $number = add_watch($directory, 0) // fail($path);
  $watches{$number} //= { path => $directory, names => {} };
  return $watches{$number}{names}{name_of($path)} = 1 if !is_directory($seen);
  @{$watches{$number}}{qw(all named recursive)} = (1, 1, $recursive);
  watch_below($path, 0) if $recursive;
}

sub add_watch {
  my ($path, $flags) = @_;
  if (keys %watches >= $most_watches) {
    record('trouble', "more than $most_watches directories; the others are not watched");
    return undef;
  }
  my $named = "$path\0";
  my $number = kernel('inotify_add_watch', $inotify, $named, $interest | $flags);
  return $number < 0 ? undef : $number;
}

sub watch_below {
  my ($path, $tell) = @_;
  my $directory = open_at(at_working_directory, $path, $open{directory}) // return;
  for my $name (@{names_in($directory) // []}) {
    my $seen = look($directory, $name, no_follow) or next;
    my $inner = below($path, $name);
    report($inner, 'create', is_directory($seen)) if $tell;
    report($inner, 'write', 0) if $tell && is_file($seen) && $seen->{size};
    watch_new($inner, $tell) if is_directory($seen);
  }
  close_file($directory);
}

# Whatever is in it already was not seen being made.
sub watch_new {
  my ($path, $tell) = @_;
  my $number = add_watch($path, $only_directory | $dont_follow) // return;
  $watches{$number} //= { path => $path, names => {} };
  @{$watches{$number}}{qw(all recursive)} = (1, 1);
  watch_below($path, $tell);
}

my %told;

sub tell_all {
  my ($buffer) = @_;
  %told = ();
  for (my $at = 0; $at < length $buffer;) {
    my ($number, $mask, $cookie, $length) = unpack "x$at l L3", $buffer;
    my $name = unpack 'Z*', substr $buffer, $at + 16, $length;
    $at += 16 + $length;
    if ($mask & $event{overflow}) {
      record('trouble', 'too much happened at once; some events were lost');
    } elsif ($mask & $event{ignored}) {
      delete $watches{$number};
    } else {
      my $watch = $watches{$number} or next;
      $length ? tell_inside($watch, $name, $mask, $cookie) : tell_itself($watch, $mask);
    }
  }
}

sub tell_itself {
  my ($watch, $mask) = @_;
  return if !$watch->{named};
  report($watch->{path}, 'remove', 1) if $mask & $event{delete_self};
  report($watch->{path}, 'chmod', 1) if $mask & $event{attributes};
}

sub tell_inside {
  my ($watch, $name, $mask, $cookie) = @_;
  my $temporary = is_temporary($name);
  $from_temporary{$cookie} = $temporary if $temporary && $mask & $event{moved_from};
  return if $temporary || !$watch->{all} && !$watch->{names}{$name};
  my $path = below($watch->{path}, $name);
  my $directory = $mask & $event{directory} ? 1 : 0;
  my $written = $mask & $event{moved_to} ? delete $from_temporary{$cookie} : undef;
  if ($written) {
    report($path, 'create', 0) if $written eq 'new';
    return report($path, 'write', 0);
  }
  report($path, 'create', $directory) if $mask & ($event{create} | $event{moved_to});
  report($path, 'write', $directory) if $mask & $event{modify};
  report($path, 'chmod', $directory) if $mask & $event{attributes};
  report($path, 'rename', $directory) if $mask & $event{moved_from};
  report($path, 'remove', $directory) if $mask & $event{delete};
  return if !$directory || !$watch->{recursive};
  forget_below($path) if $mask & $event{moved_from};
  watch_new($path, 1) if $mask & ($event{create} | $event{moved_to});
}

# They still are watched, under names that are no longer theirs.
sub forget_below {
  my ($path) = @_;
  for my $number (keys %watches) {
    next if $watches{$number}{path} ne $path && index($watches{$number}{path}, "$path/") != 0;
    kernel('inotify_rm_watch', $inotify, $number + 0);
    delete $watches{$number};
  }
}

# Once for what happened several times in a moment.
sub report {
  my ($path, $kind, $directory) = @_;
  return if $told{"$kind $path"}++;
  my $seen = look(at_working_directory, $path, no_follow);
  record('event', $path, $kind, $seen ? $seen->{size} : 0, $directory ? 1 : 0);
}

1;
