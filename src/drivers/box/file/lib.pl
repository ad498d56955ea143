# What file operations inside a box are made of: calls of the kernel that take a directory and a name in it, so that
# nothing that is moved or replaced meanwhile leads a walk astray, and the records in which a helper answers. Only what
# is built into Perl, because the box may have no Perl and may have put something else in its place.
use strict;

our $machine;

my %numbers = (
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
  close_on_exec => 02000000, place => 010000000,
);

# A tree can be deeper than any path is long. Each level holds a directory open, when copying two.
our $deepest = 2000;

# The arguments stay those of the caller, because the kernel writes into some of them.
sub kernel {
  my $name = shift;
  return syscall($numbers{$machine}{$name}, @_);
}

sub prepare_file_calls {
  # These two lie elsewhere on each machine.
  @open{qw(directory no_follow)} = $machine eq 'arm64' ? (040000, 0100000) : (0200000, 0400000);
  my ($before, $now) = ("\0" x 16, "\0" x 16);
  kernel('prlimit64', 0, 7, 0, $before);
  my ($soft, $hard) = unpack 'Q2', $before;
  my $wanted = 2 * $deepest + 64;
  $now = pack 'Q2', $hard < $wanted ? $hard : $wanted, $hard;
  kernel('prlimit64', 0, 7, $now, 0) if $soft < $wanted;
  umask 022;
}

# --- records: each is a length, a colon and that many bytes, which are fields with a zero byte between them

my $unsent = '';
my $sent_at = time;

sub send_now {
  my $at = 0;
  while ($at < length $unsent) {
    my $done = syswrite STDOUT, $unsent, length($unsent) - $at, $at;
    last if !defined $done && $! != $errno{EINTR};
    $at += $done // 0;
  }
  $unsent = '';
  $sent_at = time;
}

# Whoever reads them takes silence for a hang, so that something goes out every second.
sub record {
  my $fields = join "\0", @_;
  $unsent .= length($fields) . ":$fields";
  send_now() if length $unsent > 32768 || time != $sent_at;
}

sub refuse {
  my ($errno, $path, $why) = @_;
  record('error', $errno + 0, $path, $why // '');
  send_now();
  exit 0;
}

sub fail {
  my ($path) = @_;
  refuse($!, $path);
}

# All of it or undef: what ends in the middle was not meant to end.
sub take {
  my ($length) = @_;
  my $bytes = '';
  while (length $bytes < $length) {
    my $got = sysread STDIN, $bytes, $length - length $bytes, length $bytes;
    next if !defined $got && $! == $errno{EINTR};
    return undef if !$got;
  }
  return $bytes;
}

sub take_record {
  my $length = '';
  while (1) {
    my $byte = take(1);
    return () if !defined $byte;
    last if $byte eq ':';
    $length .= $byte;
    return () if $length !~ /^[0-9]{1,7}$/;
  }
  my $fields = take($length + 0);
  return defined $fields ? split(/\0/, $fields, -1) : ();
}

# --- what is there

sub look {
  my ($at, $name, $flags) = @_;
  my ($path, $answer) = ("$name\0", "\0" x 256);
  return undef if kernel('statx', $at, $path, $flags, 0xfff, $answer) < 0;
  my %seen;
  @seen{qw(links uid gid mode number size atime atime_nano mtime mtime_nano major minor)} =
    unpack 'x16 L3 S x2 Q2 x16 q L x4 x32 q L x4 x8 L2', $answer;
  $seen{kind} = $seen{mode} & 0170000;
  return \%seen;
}

sub look_at_open { return look($_[0], '', empty_path) }

sub is_directory { return $_[0]{kind} == 0040000 }
sub is_file      { return $_[0]{kind} == 0100000 }
sub is_link      { return $_[0]{kind} == 0120000 }

sub same { return $_[0]{number} == $_[1]{number} && $_[0]{major} == $_[1]{major} && $_[0]{minor} == $_[1]{minor} }

sub open_at {
  my ($at, $name, $flags, $mode) = @_;
  my $path = "$name\0";
  my $file;
  # Nothing that is opened here may make us wait, such as a pipe without a writer.
  do { $file = kernel('openat', $at, $path, $flags | $open{close_on_exec} | $open{no_wait} | $open{no_terminal}, $mode // 0) }
    while ($file < 0 && $! == $errno{EINTR});
  return $file < 0 ? undef : $file;
}

# To name what is in it, for which it need not be readable.
sub open_place { return open_at($_[0], $_[1], $open{directory} | $open{place}) }

sub open_directory { return open_at($_[0], $_[1], $open{directory} | $open{no_follow}) }

sub handle_of {
  my ($file, $way) = @_;
  open(my $handle, "$way&=", $file) or return undef;
  return $handle;
}

sub close_file { kernel('close', $_[0]) }

# Names in an open directory, in the order of their bytes; undef when it cannot be read.
sub names_in {
  my ($directory) = @_;
  my ($buffer, @names) = ("\0" x 65536);
  while (1) {
    my $got = kernel('getdents64', $directory, $buffer, 65536);
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
  my $length = kernel('readlinkat', $at, $path, $answer, 4096);
  return $length < 0 ? undef : substr $answer, 0, $length;
}

sub unlink_at {
  my ($at, $name, $flags) = @_;
  my $path = "$name\0";
  return kernel('unlinkat', $at, $path, $flags) == 0;
}

sub rename_at {
  my ($at, $from, $to) = @_;
  my ($old, $new) = ("$from\0", "$to\0");
  return kernel('renameat', $at, $old, $at, $new) == 0;
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

# Where the links that end a path lead: what is written to a link belongs behind it.
sub behind_links {
  my ($path) = @_;
  my $at = $path;
  for (1 .. 40) {
    my $target = readlink $at;
    return $at if !defined $target;
    $at = substr($target, 0, 1) eq '/' ? $target : below(directory_of($at), $target);
  }
  refuse($errno{ELOOP}, $path);
}

# --- a file beside the one it will replace

# The name says whether there was one before; those who watch the directory are told of the result only.
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

# Of what is open when there is no name.
sub set_times {
  my ($at, $name, $seen, $flags) = @_;
  my $times = pack 'q4', @$seen{qw(atime atime_nano mtime mtime_nano)};
  my $path = defined $name ? "$name\0" : 0;
  kernel('utimensat', $at, $path, $times, $flags // 0);
}

1;
