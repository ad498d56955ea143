# Reports changes of files with inotify until standard input ends or the box stops. Loaded by file.pl.
use strict;

our (%errno, %open, $end_of_box);

# Declared here as well, so that this file compiles by itself.
sub at_working_directory ();
sub no_follow ();

my %event = (
  modify => 0x2, attributes => 0x4, moved_from => 0x40, moved_to => 0x80, create => 0x100, delete => 0x200,
  delete_self => 0x400, overflow => 0x4000, ignored => 0x8000, directory => 0x40000000,
);
my $watched_events = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400;
my ($only_directory, $dont_follow) = (0x01000000, 0x02000000);
my $max_watches = 10_000;

# By watch descriptor: the path of the directory, whether all files in it are reported or only some names, whether the
# directories below are watched too, and whether the caller named the directory itself.
my %watches;
my $inotify;
# By cookie: whether a temporary file of the platform that was moved replaces another file.
my %from_temporary;

sub watch_files {
  my ($recursive, @paths) = @_;
  $inotify = system_call('inotify_init1', $open{close_on_exec} | $open{no_wait});
  fail($paths[0]) if $inotify < 0;
  watch_named($_, $recursive) for @paths;
  record('subscribed');
  flush_records();
  my $changes = handle_of($inotify, '<');
  while (1) {
    my $ready = '';
    vec($ready, $_, 1) = 1 for 0, $inotify, $end_of_box // ();
    next if select($ready, undef, undef, undef) < 0;
    return if vec($ready, 0, 1) || defined $end_of_box && vec($ready, $end_of_box, 1);
    my $got = sysread $changes, my $buffer, 65536;
    report_batch($buffer) if $got;
    flush_records();
  }
}

# A file is watched through its directory, because it may be replaced by another of the same name.
sub watch_named {
  my ($path, $recursive) = @_;
  my $stat = stat_at(at_working_directory, $path, 0) or fail($path);
  my $directory = is_directory($stat) ? $path : directory_of($path);
  my $descriptor = add_watch($directory, 0) // fail($path);
  $watches{$descriptor} //= { path => $directory, names => {} };
  return $watches{$descriptor}{names}{name_of($path)} = 1 if !is_directory($stat);
  @{$watches{$descriptor}}{qw(all named recursive)} = (1, 1, $recursive);
  watch_below($path, 0) if $recursive;
}

sub add_watch {
  my ($path, $flags) = @_;
  if (keys %watches >= $max_watches) {
    record('trouble', "more than $max_watches directories; the others are not watched");
    return undef;
  }
  my $named = "$path\0";
  my $descriptor = system_call('inotify_add_watch', $inotify, $named, $watched_events | $flags);
  return $descriptor < 0 ? undef : $descriptor;
}

sub watch_below {
  my ($path, $is_reported) = @_;
  my $directory = open_at(at_working_directory, $path, $open{directory}) // return;
  for my $name (@{names_in($directory) // []}) {
    my $stat = stat_at($directory, $name, no_follow) or next;
    my $inner = below($path, $name);
    report($inner, 'create', is_directory($stat)) if $is_reported;
    report($inner, 'write', 0) if $is_reported && is_file($stat) && $stat->{size};
    watch_new($inner, $is_reported) if is_directory($stat);
  }
  close_file($directory);
}

# Watches a new directory. Files that are in it already were created before the watch and are reported now.
sub watch_new {
  my ($path, $is_reported) = @_;
  my $descriptor = add_watch($path, $only_directory | $dont_follow) // return;
  $watches{$descriptor} //= { path => $path, names => {} };
  @{$watches{$descriptor}}{qw(all recursive)} = (1, 1);
  watch_below($path, $is_reported);
}

my %reported;

sub report_batch {
  my ($buffer) = @_;
  %reported = ();
  for (my $at = 0; $at < length $buffer;) {
    my ($descriptor, $mask, $cookie, $length) = unpack "x$at l L3", $buffer;
    my $name = unpack 'Z*', substr $buffer, $at + 16, $length;
    $at += 16 + $length;
    if ($mask & $event{overflow}) {
      record('trouble', 'too much happened at once; some events were lost');
    } elsif ($mask & $event{ignored}) {
      delete $watches{$descriptor};
    } else {
      my $watch = $watches{$descriptor} or next;
      $length ? report_entry($watch, $name, $mask, $cookie) : report_directory($watch, $mask);
    }
  }
}

sub report_directory {
  my ($watch, $mask) = @_;
  return if !$watch->{named};
  report($watch->{path}, 'remove', 1) if $mask & $event{delete_self};
  report($watch->{path}, 'chmod', 1) if $mask & $event{attributes};
}

sub report_entry {
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

# After a move, the watches below would report paths that no longer exist.
sub forget_below {
  my ($path) = @_;
  for my $descriptor (keys %watches) {
    next if $watches{$descriptor}{path} ne $path && index($watches{$descriptor}{path}, "$path/") != 0;
    system_call('inotify_rm_watch', $inotify, $descriptor + 0);
    delete $watches{$descriptor};
  }
}

# Reports an event once, however often it occurs in one batch.
sub report {
  my ($path, $kind, $directory) = @_;
  return if $reported{"$kind $path"}++;
  my $stat = stat_at(at_working_directory, $path, no_follow);
  record('event', $path, $kind, $stat ? $stat->{size} : 0, $directory ? 1 : 0);
}

1;
