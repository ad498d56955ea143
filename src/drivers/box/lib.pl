# Subroutines shared by the programs that start and enter boxes. They use no modules, because loading one takes longer than
# everything else these programs do.
use strict;

my %syscall_numbers = (
  x64   => { prctl => 157, setns => 308, unshare => 272, mount => 165, setxattr => 188, setsid => 112, pidfd_open => 434, pidfd_getfd => 438,
    open_tree => 428, move_mount => 429, mount_setattr => 442, umount2 => 166, close => 3, close_range => 436, setgroups => 116, setresuid => 117, setresgid => 119, capset => 126, getcwd => 79, memfd_create => 319, seccomp => 317, pivot_root => 155, prlimit64 => 302, openat2 => 437, fsetxattr => 190, clock_gettime => 228 },
  arm64 => { prctl => 167, setns => 268, unshare => 97, mount => 40, setxattr => 5, setsid => 157, pidfd_open => 434, pidfd_getfd => 438,
    open_tree => 428, move_mount => 429, mount_setattr => 442, umount2 => 39, close => 57, close_range => 436, setgroups => 159, setresuid => 147, setresgid => 149, capset => 91, getcwd => 17, memfd_create => 279, seccomp => 277, pivot_root => 41, prlimit64 => 261, openat2 => 437, fsetxattr => 7, clock_gettime => 113 },
);
our $machine = 'x64';

our %namespace = (
  mnt => 0x00020000, cgroup => 0x02000000, uts => 0x04000000, ipc => 0x08000000, user => 0x10000000, pid => 0x20000000,
  net => 0x40000000,
);

# The capabilities of root in a box: over its own files, processes and ports, and none over the kernel.
my %capability = (
  CHOWN => 0, DAC_OVERRIDE => 1, FOWNER => 3, FSETID => 4, KILL => 5, SETGID => 6, SETUID => 7, SETPCAP => 8,
  NET_BIND_SERVICE => 10, SYS_CHROOT => 18, SETFCAP => 31,
);
our @capabilities = values %capability;

sub capability_names {
  my @names = sort keys %capability;
  return @names;
}

sub attempt {
  my ($name, @arguments) = @_;
  return syscall($syscall_numbers{$machine}{$name}, @arguments);
}

sub call {
  my ($name, @arguments) = @_;
  my $answer = attempt($name, @arguments);
  die "$name: $!\n" if $answer < 0;
  return $answer;
}

# The kernel writes into the scalar, so it cannot be passed through `attempt`, which copies its arguments.
sub current_directory {
  my $buffer = "\0" x 4096;
  my $length = syscall($syscall_numbers{$machine}{getcwd}, $buffer, 4096);
  die "getcwd: $!\n" if $length < 0;
  return substr $buffer, 0, $length - 1;
}

# Seconds, with fractions: 0 is the time of day and 1 a clock that is never set.
sub read_clock {
  my ($which) = @_;
  my $time = "\0" x 16;
  syscall($syscall_numbers{$machine}{clock_gettime}, $which + 0, $time);
  my ($seconds, $nanoseconds) = unpack 'q2', $time;
  return $seconds + $nanoseconds / 1e9;
}

# Marks all descriptors from 3 on (CLOSE_RANGE_CLOEXEC), so that the program does not inherit those of the platform.
sub close_on_exec {
  attempt('close_range', 3, 0x7fffffff, 4);
}

sub read_file {
  my ($path) = @_;
  open(my $file, '<', $path) or return undef;
  local $/;
  return scalar <$file>;
}

sub write_file {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or return 0;
  return defined syswrite($file, $text);
}

# Limits the bounding set, so that no program that is executed can gain other capabilities.
sub limit_bounding_set {
  my %kept = map { $_ => 1 } @capabilities;
  for my $one (0 .. 63) {
    next if $kept{$one};
    # PR_CAPBSET_DROP; it fails for the first capability that the kernel does not know.
    last if attempt('prctl', 24, $one, 0, 0, 0) < 0;
  }
}

# Drops the capabilities of this process itself, which the bounding set only limits at the next exec.
sub drop_capabilities {
  my $bits = 0;
  $bits |= 1 << $_ for @capabilities;
  my ($header, $sets) = (pack('L l', 0x20080522, 0), pack('L6', $bits, $bits, 0, 0, 0, 0));
  call('capset', $header, $sets);
}

# Reads the request from the environment and removes it there.
sub take_request {
  my $text = '';
  for (my $part = 0; defined(my $more = delete $ENV{"BERTH_ENTER_$part"}); $part++) { $text .= $more }
  return read_words($text);
}

# Decodes named lists of words: the name, the number of words, and the words. See renderWords in enter.ts.
sub read_words {
  my ($text) = @_;
  $text =~ s/%(25|00)/$1 eq '00' ? "\0" : '%'/ge;
  my @words = split /\0/, $text, -1;
  my %request;
  while (@words) {
    my ($key, $count) = (shift @words, shift @words);
    $request{$key} = [splice @words, 0, $count];
  }
  return %request;
}

# Moves this process into a control group. With cgroup v1 it is moved as a thread, because moving a process waits for an RCU
# grace period, which takes longer than everything else here.
sub join_cgroup {
  my ($members) = @_;
  my $threads = $members =~ s/cgroup\.procs$/tasks/r;
  write_file(-e $threads ? $threads : $members, "0\n");
}

# Enters the box that the request names, with the privileges of its processes. Perl must not load files any more, because
# they would be those of the box. Returns false when the box does not run.
sub enter_by_request {
  my (%request) = @_;
  $machine = $request{machine}[0];
  my $is_isolated = $request{way}[0] ne 'none';
  @capabilities = () if $request{privileges}[0] eq 'minimal';
  my $filter = $is_isolated ? read_file($request{filter}[0]) // die "no filter\n" : '';
  join_cgroup($_) for @{$request{cgroup}};
  if ($is_isolated) {
    enter_box(box_of(%request)) or return 0;
    limit_bounding_set();
    become(0);
    drop_capabilities();
  } elsif ($request{uid}[0] != $>) {
    become($request{uid}[0]);
  }
  @INC = ();
  forbid_new_privileges();
  apply_filter($filter) if $is_isolated;
  umask 022;
  return 1;
}

sub forbid_new_privileges {
  call('prctl', 38, 1, 0, 0, 0); # PR_SET_NO_NEW_PRIVS
}

sub apply_filter {
  my ($filter) = @_;
  my $program = pack('S x6 P', length($filter) / 8, $filter);
  call('prctl', 22, 2, $program, 0, 0); # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
}

# The pid of the process that s6 supervises, or 0. Its environment is checked, because pids are reused.
sub supervised_process {
  my ($service) = @_;
  my $status = read_file("$service/supervise/status");
  return 0 if !defined $status || length $status < 32;
  my $pid = unpack('N', substr($status, 28, 4));
  return 0 if !$pid;
  my $environment = read_file("/proc/$pid/environ");
  return 0 if !defined $environment || index("\0$environment\0", "\0BERTH_SERVICE=$service\0") < 0;
  return $pid;
}

sub child_of {
  my ($pid) = @_;
  my ($child) = split ' ', read_file("/proc/$pid/task/$pid/children") // '';
  return ($child // 0) + 0;
}

# The child of the supervised process that runs this container, or 0.
sub container_process {
  my ($supervised, $container) = @_;
  for my $pid (split ' ', read_file("/proc/$supervised/task/$supervised/children") // '') {
    my $environment = read_file("/proc/$pid/environ") // '';
    return $pid + 0 if index("\0$environment\0", "\0BERTH_CONTAINER=$container\0") >= 0;
  }
  return 0;
}

# What names the first process of a box in a request: the service, the uid, and for machines the name of the process and the
# container.
sub box_of {
  my (%request) = @_;
  return map { $request{$_} ? $request{$_}[0] : undef } qw(service uid first container);
}

# The pid of the first process of a box, or 0.
sub first_process {
  my ($service, $uid, $name, $container) = @_;
  my $supervised = supervised_process($service) or return 0;
  return init_of($supervised, $uid, $name // 's6-svscan') if !defined $container;
  my $process = container_process($supervised, $container) or return 0;
  return init_of($process, $uid, $name);
}

# The child of bwrap, which is the child of this process, or 0. Before it has executed s6-svscan, its filesystem is not
# mounted. In a machine the first process stays bwrap, may run as any uid of the box, and has a child once everything is
# mounted.
sub init_of {
  my ($supervised, $uid, $name) = @_;
  my $bwrap = child_of($supervised) or return 0;
  my $first = child_of($bwrap) or return 0;
  my $status = read_file("/proc/$first/status") // '';
  return 0 if $status !~ /^Name:\t$name\n.*^Uid:\t(\d+)\t.*^NSpid:\t[\t0-9]*\t1\n/ms;
  return $1 == $uid ? $first : 0 if $name ne 'bwrap';
  return $1 >= $uid && $1 < $uid + 65536 && child_of($first) ? $first : 0;
}

# A pidfd that becomes readable when the box of the request ends, or -1. Processes that stay in a box without being one of
# its processes must end then, because they hold its mounts.
sub watch_box {
  my (%request) = @_;
  my $service = $request{service}[0];
  my $is_isolated = $request{way}[0] ne 'none';
  my $first = $is_isolated ? first_process(box_of(%request)) : supervised_process($service);
  return $first ? attempt('pidfd_open', $first, 0) : -1;
}

# Joins all namespaces of the first process at once. It is looked up again when its pidfd is open, in case the pid was
# reused in between.
sub enter_box {
  my @box = @_;
  my $first = first_process(@box) or return 0;
  my $pidfd = attempt('pidfd_open', $first, 0);
  return 0 if $pidfd < 0;
  my $same = first_process(@box) == $first;
  my $flags = 0;
  $flags |= $_ for values %namespace;
  my $entered = $same && attempt('setns', $pidfd, $flags) == 0;
  call('close', $pidfd);
  return $entered;
}

# Switches to a uid and the gid of the same number. setgroups fails in a user namespace made without root.
sub become {
  my $uid = $_[0] + 0; # syscall passes a string as a pointer
  attempt('setgroups', 0, 0);
  call('setresgid', $uid, $uid, $uid);
  call('setresuid', $uid, $uid, $uid);
}

1;
