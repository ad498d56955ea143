# Runs one file operation inside a box. The request comes on standard input and the response goes to standard output, both as
# records; the content of a file follows the record that announces it. The first word of the request names the operation.
# Usage: perl file.pl, with the box to enter in the environment
use strict;

our (%errno, %open);

my $here;

BEGIN {
  $here = $0 =~ s{[^/]*$}{}r;
  require "$here$_" for qw(../lib.pl ../enter/help.pl lib.pl);
}

my %operations = (
  read   => { run => \&send_file },
  write  => { run => \&receive_file, needs => ['copy'] },
  list   => { run => \&list_files, needs => ['tree'] },
  delete => { run => \&delete_file, needs => ['tree'] },
  rename => { run => \&rename_file, needs => ['tree', 'copy'] },
  copy   => { run => \&copy_file, needs => ['copy'] },
  chmod  => { run => \&chmod_file, needs => ['tree'] },
  chown  => { run => \&chown_file, needs => ['tree'] },
  watch  => { run => \&watch_files, needs => ['watch'] },
);

# All code is loaded before entering, because the files that are visible afterwards are those of the box.
my ($name, @arguments) = read_record();
my $operation = $operations{$name // ''} or exit 1;
require "${here}$_.pl" for @{$operation->{needs} // []};
enter_as_helper();
prepare_file_calls();
$operation->{run}->(@arguments);
record('done') if $name ne 'read';
flush_records();
exit 0;

# Sends the metadata of the file, reads a record with the offset and the length that the caller wants, and sends those
# bytes. Without a length it reads to the end, because files of the kernel have size 0.
sub send_file {
  my ($path) = @_;
  my $file = open_at(at_working_directory, $path, 0) // fail($path);
  my $stat = stat_open($file) or fail($path);
  refuse($errno{EISDIR}, $path) if is_directory($stat);
  refuse($errno{EINVAL}, $path, 'it is not a regular file') if !is_file($stat);
  record('file', @$stat{qw(size mode mtime mtime_nano)});
  flush_records();
  my ($from, $length) = read_record() or return;
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

# The content comes in pieces, each preceded by its length, and an empty one at the end. Without that the upload was aborted,
# and the file stays as it was.
sub receive_file {
  my ($named, $mode, $directories) = @_;
  $SIG{PIPE} = 'IGNORE';
  my $path = resolve_links($named);
  my $old = stat_at(at_working_directory, $path, no_follow);
  fail($named) if !$old && $! != $errno{ENOENT};
  refuse($errno{EISDIR}, $named) if $old && is_directory($old);
  refuse($errno{EINVAL}, $named, 'it is not a regular file') if $old && !is_file($old);
  make_directories(directory_of($path)) if !$old && $directories eq 'all';
  make_directory(directory_of($path)) if !$old && $directories eq 'last';
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
  my $now = stat_open(fileno $out) or fail($named);
  record('written', $old ? 'old' : 'new', $size, $now->{mode});
}

# Opens a temporary file beside the target. Where none can be created, as in /proc, the target itself is opened.
sub open_to_write {
  my ($path, $old) = @_;
  my $directory = open_path(at_working_directory, directory_of($path)) // return ();
  my ($out, $name) = create_temporary($directory, $old);
  close_file($directory);
  return ($out, below(directory_of($path), $name)) if $out;
  return () if !$old;
  my $file = open_at(at_working_directory, $path, $open{write} | $open{truncate} | $open{no_follow}) // return ();
  return (handle_of($file, '>'), undef);
}

# Renames the temporary file to the target. A mount point cannot be replaced, so its content is overwritten instead.
sub put_in_place {
  my ($temporary, $path) = @_;
  return 0 if rename $temporary, $path;
  return $! + 0 if $! != $errno{EBUSY};
  my $from = open_at(at_working_directory, $temporary, 0) // return $! + 0;
  my $to = open_at(at_working_directory, $path, $open{write} | $open{truncate} | $open{no_follow}) // return $! + 0;
  defined copy_bytes(handle_of($from, '<'), handle_of($to, '>')) or return $! + 0;
  unlink $temporary;
  return 0;
}

# Returns the number of bytes received, or undef when they could not be written.
sub receive {
  my ($out) = @_;
  my $size = 0;
  while (1) {
    my $length = read_exactly(4) // return cancelled();
    my $left = unpack 'N', $length;
    return $size if $left == 0;
    while ($left > 0) {
      my $piece = read_exactly($left < 262144 ? $left : 262144) // return cancelled();
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
    make_directory($at);
  }
}

sub make_directory {
  my ($path) = @_;
  mkdir $path, 0755 or $! == $errno{EEXIST} or fail($path);
}
