# Subroutines for file operations inside a box: system calls relative to open directories, so that a walk cannot be
# redirected by files that are moved or replaced meanwhile, and the records of helpers. No modules are used, because after
# entering they would be loaded from the box.
use strict;

our $machine;

my %file_syscall_numbers = (
  x64   => { openat => 257, mkdirat => 258, fchownat => 260, unlinkat => 263, renameat => 264, symlinkat => 266,
    readlinkat => 267, fchmodat => 268, statx => 332, getdents64 => 217, utimensat => 280, close => 3, prlimit64 => 302,
    inotify_init1 => 294, inotify_add_watch => 254, inotify_rm_watch => 255 },
  arm64 => { openat => 56, mkdirat => 34, fchownat => 54, unlinkat => 35, renameat => 38, symlinkat => 36,
    readlinkat => 78, fchmodat => 53, statx => 291, getdents64 => 61, utimensat => 88, close => 57, prlimit64 => 261,
    inotify_init1 => 26, inotify_add_watch => 27, inotify_rm_watch => 28 },
);

sub at_working_directory () { -100 }
sub no_follow ()            { 0x100 }
sub remove_directory ()     { 0x200 }
sub empty_path ()           { 0x1000 }

our %errno = (
  EPERM => 1, ENOENT => 2, EINTR => 4, EAGAIN => 11, EACCES => 13, EBUSY => 16, EEXIST => 17, EXDEV => 18, ENOTDIR => 20,
  EISDIR => 21, EINVAL => 22, EROFS => 30, ENAMETOOLONG => 36, ENOTEMPTY => 39, ELOOP => 40, ECANCELED => 125,
);

our %open = (
  write => 01, create => 0100, exclusive => 0200, no_terminal => 0400, truncate => 01000, no_wait => 04000,
  close_on_exec => 02000000, path => 010000000,
);

# Trees can be deeper than PATH_MAX allows. Each level keeps one directory open, or two when copying.
our $max_depth = 2000;

# The arguments are not copied, because the kernel writes into some of them.
sub system_call {
  my $name = shift;
  return syscall($file_syscall_numbers{$machine}{$name}, @_);
}

sub prepare_file_calls {
  # O_DIRECTORY and O_NOFOLLOW depend on the architecture.
  @open{qw(directory no_follow)} = $machine eq 'arm64' ? (040000, 0100000) : (0200000, 0400000);
  my ($before, $now) = ("\0" x 16, "\0" x 16);
  system_call('prlimit64', 0, 7, 0, $before);
  my ($soft, $hard) = unpack 'Q2', $before;
  my $wanted = 2 * $max_depth + 64;
  $now = pack 'Q2', $hard < $wanted ? $hard : $wanted, $hard;
  system_call('prlimit64', 0, 7, $now, 0) if $soft < $wanted;
  umask 022;
}

# --- records: a length, a colon, and fields separated by zero bytes

my $unsent = '';
my $sent_at = time;

sub flush_records {
  my $at = 0;
  while ($at < length $unsent) {
    my $done = syswrite STDOUT, $unsent, length($unsent) - $at, $at;
    last if !defined $done && $! != $errno{EINTR};
    $at += $done // 0;
  }
  $unsent = '';
  $sent_at = time;
}

# Output is flushed every second, because the reader treats silence as a hang.
sub record {
  my $fields = join "\0", @_;
  $unsent .= length($fields) . ":$fields";
  flush_records() if length $unsent > 32768 || time != $sent_at;
}

sub refuse {
  my ($errno, $path, $why) = @_;
  record('error', $errno + 0, $path, $why // '');
  flush_records();
  exit 0;
}

sub fail {
  my ($path) = @_;
  refuse($!, $path);
}

# Reads exactly this many bytes; undef when the input ends before.
sub read_exactly {
  my ($length) = @_;
  my $bytes = '';
  while (length $bytes < $length) {
    my $got = sysread STDIN, $bytes, $length - length $bytes, length $bytes;
    next if !defined $got && $! == $errno{EINTR};
    return undef if !$got;
  }
  return $bytes;
}

sub read_record {
  my $length = '';
  while (1) {
    my $byte = read_exactly(1);
    return () if !defined $byte;
    last if $byte eq ':';
    $length .= $byte;
    return () if $length !~ /^[0-9]{1,7}$/;
  }
  my $fields = read_exactly($length + 0);
  return defined $fields ? split(/\0/, $fields, -1) : ();
}

# --- metadata

sub stat_at {
  my ($at, $name, $flags) = @_;
  my ($path, $answer) = ("$name\0", "\0" x 256);
  return undef if system_call('statx', $at, $path, $flags, 0xfff, $answer) < 0;
  my %stat;
  @stat{qw(links uid gid mode number size atime atime_nano mtime mtime_nano major minor)} =
    unpack 'x16 L3 S x2 Q2 x16 q L x4 x32 q L x4 x8 L2', $answer;
  $stat{kind} = $stat{mode} & 0170000;
  return \%stat;
}

sub stat_open { return stat_at($_[0], '', empty_path) }

sub is_directory { return $_[0]{kind} == 0040000 }
sub is_file      { return $_[0]{kind} == 0100000 }
sub is_link      { return $_[0]{kind} == 0120000 }

sub is_same_file { return $_[0]{number} == $_[1]{number} && $_[0]{major} == $_[1]{major} && $_[0]{minor} == $_[1]{minor} }

sub open_at {
  my ($at, $name, $flags, $mode) = @_;
  my $path = "$name\0";
  my $file;
  # O_NONBLOCK, because opening a pipe without a writer would block.
  do { $file = system_call('openat', $at, $path, $flags | $open{close_on_exec} | $open{no_wait} | $open{no_terminal}, $mode // 0) }
    while ($file < 0 && $! == $errno{EINTR});
  return $file < 0 ? undef : $file;
}

# With O_PATH, which needs no read permission.
sub open_path { return open_at($_[0], $_[1], $open{directory} | $open{path}) }

sub open_directory { return open_at($_[0], $_[1], $open{directory} | $open{no_follow}) }

sub handle_of {
  my ($file, $mode) = @_;
  open(my $handle, "$mode&=", $file) or return undef;
  return $handle;
}

sub close_file { system_call('close', $_[0]) }

# The names in an open directory, sorted bytewise; undef when it cannot be read.
sub names_in {
  my ($directory) = @_;
  my ($buffer, @names) = ("\0" x 65536);
  while (1) {
    my $got = system_call('getdents64', $directory, $buffer, 65536);
    return undef if $got < 0;
    last if $got == 0;
    for (my $at = 0; $at < $got;) {
      my $length = unpack "x$at x16 S", $buffer;
      my $name = unpack 'Z*', substr $buffer, $at + 19, $length - 19;
      push @names, $name if $name ne '.' && $name ne '..';
      $at += $length;
    }
  }
  return [sort @names];
}

sub link_target {
  my ($at, $name) = @_;
  my ($path, $answer) = ("$name\0", "\0" x 4096);
  my $length = system_call('readlinkat', $at, $path, $answer, 4096);
  return $length < 0 ? undef : substr $answer, 0, $length;
}

sub unlink_at {
  my ($at, $name, $flags) = @_;
  my $path = "$name\0";
  return system_call('unlinkat', $at, $path, $flags) == 0;
}

sub rename_at {
  my ($at, $from, $to) = @_;
  my ($old, $new) = ("$from\0", "$to\0");
  return system_call('renameat', $at, $old, $at, $new) == 0;
}

sub below {
  my ($path, $name) = @_;
  return $path eq '/' ? "/$name" : "$path/$name";
}

sub directory_of {
  my ($path) = @_;
  return $path =~ m{^(.*)/[^/]*$}s ? ($1 eq '' ? '/' : $1) : '.';
}

sub name_of {
  my ($path) = @_;
  return $path =~ m{([^/]*)$}s ? $1 : $path;
}

# Follows the links at the end of a path, because writing to a link writes to its target.
sub resolve_links {
  my ($path) = @_;
  my $at = $path;
  for (1 .. 40) {
    my $target = readlink $at;
    return $at if !defined $target;
    $at = substr($target, 0, 1) eq '/' ? $target : below(directory_of($at), $target);
  }
  refuse($errno{ELOOP}, $path);
}

# --- temporary files

# The name says whether the file replaces another. Watchers of the directory do not get events for it.
sub temporary_name {
  my ($replaces) = @_;
  my $random = join '', map { sprintf '%04x', rand 65536 } 1 .. 4;
  return sprintf '.berth~%s~%s', $replaces ? 'old' : 'new', $random;
}

sub is_temporary { return $_[0] =~ /^\.berth~(old|new)~[0-9a-f]{16}$/ ? $1 : undef }

sub create_temporary {
  my ($at, $replaces) = @_;
  for (1 .. 8) {
    my $name = temporary_name($replaces);
    my $file = open_at($at, $name, $open{write} | $open{create} | $open{exclusive} | $open{no_follow}, 0600);
    return (handle_of($file, '>'), $name) if defined $file;
    return () if $! != $errno{EEXIST};
  }
  return ();
}

sub write_all {
  my ($file, $bytes) = @_;
  my $at = 0;
  while ($at < length $bytes) {
    my $done = syswrite $file, $bytes, length($bytes) - $at, $at;
    next if !defined $done && $! == $errno{EINTR};
    return 0 if !$done;
    $at += $done;
  }
  return 1;
}

# Without a name, sets the times of the open file $at.
sub set_times {
  my ($at, $name, $stat, $flags) = @_;
  my $times = pack 'q4', @$stat{qw(atime atime_nano mtime mtime_nano)};
  my $path = defined $name ? "$name\0" : 0;
  system_call('utimensat', $at, $path, $times, $flags // 0);
}

1;
