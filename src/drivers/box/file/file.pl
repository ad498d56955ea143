# One file operation inside a box. The request comes on standard input, the answer goes to standard output, both as
# records; the bytes of a file follow the record that announces them.
use strict;

our (%errno, %open);

my $here;

BEGIN {
  $here = $0 =~ s{[^/]*$}{}r;
  require "$here$_" for qw(../lib.pl ../enter/help.pl lib.pl);
}

my %operations = (
  read   => { run => \&read_file_out },
  write  => { run => \&write_file_in, needs => ['copy'] },
  list   => { run => \&list_files, needs => ['tree'] },
  delete => { run => \&delete_file, needs => ['tree'] },
  rename => { run => \&rename_file, needs => ['tree', 'copy'] },
  copy   => { run => \&copy_file, needs => ['copy'] },
  chmod  => { run => \&chmod_file, needs => ['tree'] },
  chown  => { run => \&chown_file, needs => ['tree'] },
  watch  => { run => \&watch_files, needs => ['watch'] },
);

# Everything is read before entering, for what lies there afterwards is the box's.
my ($name, @arguments) = take_record();
my $operation = $operations{$name // ''} or exit 1;
require "${here}$_.pl" for @{$operation->{needs} // []};
enter_to_help();
prepare_file_calls();
$operation->{run}->(@arguments);
record('done') if $name ne 'read';
send_now();
exit 0;

# Says what the file is, is told which part of it is wanted, and sends that: `from` and a number of bytes, or as many as
# there are. Files of the kernel say that they are empty and are not.
sub read_file_out {
  my ($path) = @_;
  my $file = open_at(at_working_directory, $path, 0) // fail($path);
  my $seen = look_at_open($file) or fail($path);
  refuse($errno{EISDIR}, $path) if is_directory($seen);
  refuse($errno{EINVAL}, $path, 'it is not a regular file') if !is_file($seen);
  record('file', @$seen{qw(size mode mtime mtime_nano)});
  send_now();
  my ($from, $length) = take_record() or return;
  my $in = handle_of($file, '<');
  sysseek $in, $from, 0;
  my $left = $length eq '' ? 9e15 : $length;
  while ($left > 0) {
    my $got = sysread $in, my $piece, $left < 262144 ? $left : 262144;
    next if !defined $got && $! == $errno{EINTR};
    last if !$got;
    write_all(\*STDOUT, $piece) or last;
    $left -= $got;
  }
}

# The bytes come in pieces with their lengths in front. Without the empty one at the end whoever sent them has gone, and
# the file stays as it was.
sub write_file_in {
  my ($named, $mode, $parents) = @_;
  $SIG{PIPE} = 'IGNORE';
  my $path = behind_links($named);
  my $old = look(at_working_directory, $path, no_follow);
  fail($named) if !$old && $! != $errno{ENOENT};
  refuse($errno{EISDIR}, $named) if $old && is_directory($old);
  refuse($errno{EINVAL}, $named, 'it is not a regular file') if $old && !is_file($old);
  make_directories(directory_of($path)) if !$old && $parents;
  my ($out, $temporary) = open_to_write($path, $old) or fail($named);
  my $size = receive($out);
  my $why = $! + 0;
  if (defined $size && defined $temporary) {
    chown @$old{qw(uid gid)}, $out if $old;
    chmod $mode ne '' ? $mode : $old ? $old->{mode} & 07777 : 0644, $out;
    $why = put_in_place($temporary, $path);
    $size = undef if $why;
  }
  unlink $temporary if !defined $size && defined $temporary;
  refuse($why, $named) if !defined $size;
  chmod $mode, $out if $mode ne '' && !defined $temporary;
  my $now = look_at_open(fileno $out) or fail($named);
  record('written', $old ? 'old' : 'new', $size, $now->{mode});
}

# Files that have a place of their own, such as those of the kernel, are written where they are.
sub open_to_write {
  my ($path, $old) = @_;
  my $directory = open_place(at_working_directory, directory_of($path)) // return ();
  my ($out, $name) = create_temporary($directory, $old);
  close_file($directory);
  return ($out, below(directory_of($path), $name)) if $out;
  return () if !$old;
  my $file = open_at(at_working_directory, $path, $open{write} | $open{truncate} | $open{no_follow}) // return ();
  return (handle_of($file, '>'), undef);
}

# Nothing can be renamed over a file that is mounted; its contents can be replaced.
sub put_in_place {
  my ($temporary, $path) = @_;
  return 0 if rename $temporary, $path;
  return $! + 0 if $! != $errno{EBUSY};
  my $from = open_at(at_working_directory, $temporary, 0) // return $! + 0;
  my $to = open_at(at_working_directory, $path, $open{write} | $open{truncate} | $open{no_follow}) // return $! + 0;
  defined pour(handle_of($from, '<'), handle_of($to, '>')) or return $! + 0;
  unlink $temporary;
  return 0;
}

# The size of all that came; undef when it could not be written.
sub receive {
  my ($out) = @_;
  my $size = 0;
  while (1) {
    my $length = take(4) // return cancelled();
    my $left = unpack 'N', $length;
    return $size if $left == 0;
    while ($left > 0) {
      my $piece = take($left < 262144 ? $left : 262144) // return cancelled();
      write_all($out, $piece) or return undef;
      $left -= length $piece;
      $size += length $piece;
    }
  }
}

sub cancelled {
  $! = $errno{ECANCELED};
  return undef;
}

sub make_directories {
  my ($path) = @_;
  my $at = '';
  for my $name (grep { $_ ne '' } split m{/}, $path) {
    $at .= "/$name";
    mkdir $at, 0755 or $! == $errno{EEXIST} or fail($at);
  }
}
