# Confines unpack.pl before it reads the first byte. The tar comes from a tenant, and the unpacker must run as root to set
# owners, so the process that parses it keeps nothing else: it sees no file but its target, has namespaces of its own, five
# capabilities, few system calls and limited memory and time. A second process, which parses nothing, sets the one
# attribute that takes more privileges.
use strict;
use Errno;

our ($machine, $too_large, $cannot, @capabilities, %namespace);

# What the unpacker and the memory management of Perl need. All other system calls fail with EPERM.
my %allowed = (
  # read write open close stat fstat lstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn access
  # mremap madvise dup getpid exit fcntl getcwd chdir mkdir rmdir link unlink symlink chmod fchmod chown fchown lchown umask
  # gettimeofday geteuid lsetxattr futex getdents64 restart_syscall clock_gettime exit_group utimes openat mkdirat mknodat
  # fchownat futimesat newfstatat unlinkat linkat symlinkat fchmodat utimensat getrandom statx
  x64 => [0 .. 6, 8 .. 15, 21, 25, 28, 32, 39, 60, 72, 79, 80, 83, 84, 86 .. 88, 90 .. 96, 107, 189, 202, 217, 219, 228,
    231, 235, 257 .. 263, 265, 266, 268, 280, 318, 332],
  # The same calls where they exist; older ones only have the variant with a directory.
  arm64 => [6, 17, 23, 25, 33 .. 37, 48, 49, 52 .. 57, 61 .. 64, 79, 80, 88, 93, 94, 98, 113, 128, 134, 135, 139, 166, 169,
    172, 175, 214, 215, 216, 222, 226, 233, 278, 291],
);
my %architecture = (x64 => 0xc000003e, arm64 => 0xc00000b7);

# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, SETFCAP. Whiteouts are devices that take no capability.
my @needed_capabilities = (0, 1, 3, 4, 31);
my $max_cpu_seconds = 3600;       # above what the largest image takes
my $max_memory_bytes = 5 << 28;   # above the names that unpack.pl remembers, which it limits itself
my $max_open_files = 16;
my $max_core_bytes = 0;

# Returns in a confined process whose root is the directory. The calling process waits for it and ends with its exit code.
# The returned handle takes the names of opaque directories, each ended by a zero byte; undef means that the confined
# process can mark them itself.
sub confine {
  my ($directory, $max_bytes) = @_;
  my $is_root = $> == 0;
  pipe(my $names, my $report) or refuse($cannot, "pipe: $!");
  my $child = fork // refuse($cannot, "fork: $!");
  if ($child) {
    close $report;
    supervise($child, sub { set_opaque_directories($names, $directory) });
  }
  close $names;
  die_with_parent();
  enter_root($directory, $is_root);
  # Perl must not load modules any more, because they would be those of the image.
  @INC = ();
  limit_resources($max_bytes);
  reduce_privileges();
  return $is_root ? $report : undef;
}

# Waits for the process with this pid and ends like it.
sub supervise {
  my ($child, $meanwhile) = @_;
  # Otherwise a sender would not learn that the reader is gone.
  close STDIN;
  $meanwhile->() if $meanwhile;
  waitpid $child, 0;
  my ($signal, $code) = ($? & 127, $? >> 8);
  refuse($too_large, 'it takes too much time or space') if $signal == 24 || $signal == 25; # SIGXCPU, SIGXFSZ
  refuse($cannot, "the unpacker was ended by signal $signal") if $signal;
  exit $code;
}

sub die_with_parent {
  call('prctl', 1, 9, 0, 0, 0); # PR_SET_PDEATHSIG, SIGKILL
}

# Makes the directory the root. Without namespaces it is only a chroot, and the privileges below are what confines.
sub enter_root {
  my ($directory, $is_root) = @_;
  eval { enter_own_namespace(); 1 } or refuse($cannot, "user namespaces are not available: $@") if !$is_root;
  my $flags = 0;
  $flags |= $namespace{$_} for qw(mnt net ipc uts pid cgroup);
  if (attempt('unshare', $flags) == 0) {
    eval { pivot_into($directory); 1 } or refuse($cannot, "cannot enter the layer: $@");
    # Only a child of this process is in the new PID namespace.
    my $child = fork // refuse($cannot, "fork: $!");
    supervise($child) if $child;
    die_with_parent();
    return;
  }
  # Other errors, such as a limit on the number of namespaces, may be caused by tenants and must not weaken this.
  refuse($cannot, "unshare: $!") if !$!{EPERM} && !$!{ENOSYS} && !$!{EINVAL};
  chroot $directory or refuse($cannot, "chroot: $!");
  chdir '/' or refuse($cannot, "chdir: $!");
}

# Makes the directory the root of the mount namespace, without the files of the host.
sub pivot_into {
  my ($directory) = @_;
  mount_at('none', '/', 'none', 0x4000 | 0x80000); # MS_REC, MS_SLAVE
  mount_at($directory, $directory, 'none', 0x1000); # MS_BIND
  my ($path, $attributes) = ("$directory\0", pack('QQQQ', 2 | 4 | 8, 0, 0, 0)); # nosuid, nodev, noexec
  call('mount_setattr', -100, $path, 0, $attributes, length $attributes);
  chdir $directory or die "chdir: $!\n";
  my $here = ".\0";
  call('pivot_root', $here, $here);
  call('umount2', $here, 2); # MNT_DETACH
  chdir '/' or die "chdir: $!\n";
}

sub limit_resources {
  my ($max_bytes) = @_;
  # RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_AS
  my %limits = (0 => $max_cpu_seconds, 1 => $max_bytes, 4 => $max_core_bytes, 7 => $max_open_files, 9 => $max_memory_bytes);
  for my $resource (keys %limits) {
    my $limit = pack 'QQ', $limits{$resource}, $limits{$resource};
    attempt('prlimit64', 0, $resource + 0, $limit, 0) == 0 or refuse($cannot, "prlimit: $!");
  }
}

sub reduce_privileges {
  @capabilities = @needed_capabilities;
  eval {
    limit_bounding_set();
    # An ordinary user has lost all capabilities of the host with the user namespace.
    drop_capabilities();
    forbid_new_privileges();
    apply_filter(allow_list());
    1;
  } or refuse($cannot, "cannot drop privileges: $@");
}

# Renders a seccomp filter as struct sock_filter instructions.
sub allow_list {
  my @calls = @{ $allowed{$machine} };
  my ($kill, $refuse, $allow) = (0x80000000, 0x00050001, 0x7fff0000); # SECCOMP_RET_KILL_PROCESS, ERRNO EPERM, ALLOW
  my @program = ([0x20, 0, 0, 4], [0x15, 1, 0, $architecture{$machine}], [0x06, 0, 0, $kill], [0x20, 0, 0, 0]);
  push @program, [0x15, @calls - $_, 0, $calls[$_]] for 0 .. $#calls;
  push @program, [0x06, 0, 0, $refuse], [0x06, 0, 0, $allow];
  return join '', map { pack 'S C C L', @$_ } @program;
}

# Marks directories as opaque, whose names the confined process sends. That takes CAP_SYS_ADMIN.
sub set_opaque_directories {
  my ($names, $directory) = @_;
  opendir my $handle, $directory or refuse($cannot, "open: $!");
  my $buffer = '';
  while (sysread $names, $buffer, 65_536, length $buffer) {
    while ($buffer =~ s/^([^\0]*)\0//) { set_opaque(fileno $handle, $1) }
    refuse($cannot, 'a name is too long') if length $buffer > 8192;
  }
}

# The kernel resolves links as if the layer were the root (RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS, RESOLVE_NO_XDEV).
sub set_opaque {
  my ($root, $name) = @_;
  my ($path, $how) = ("$name\0", pack('QQQ', 0200000 | 02000000, 0, 0x10 | 0x02 | 0x01)); # O_DIRECTORY, O_CLOEXEC
  my $file = attempt('openat2', $root, $path, $how, length $how);
  refuse($cannot, 'cannot open ' . printable($name) . ": $!") if $file < 0;
  my ($key, $value) = ("trusted.overlay.opaque\0", 'y');
  my $failed = attempt('fsetxattr', $file, $key, $value, 1, 0) != 0;
  my $reason = "$!";
  call('close', $file);
  refuse($cannot, 'cannot make opaque ' . printable($name) . ": $reason") if $failed;
}

1;
