# What the programs that make and enter boxes share. Only what is built into Perl: loading a module takes longer than
# everything they do.
use strict;

my %numbers = (
  x64   => { prctl => 157, setns => 308, unshare => 272, mount => 165, setxattr => 188, setsid => 112, pidfd_open => 434, pidfd_getfd => 438,
    open_tree => 428, move_mount => 429, mount_setattr => 442, umount2 => 166, close => 3, close_range => 436, setgroups => 116, setresuid => 117, setresgid => 119, capset => 126, getcwd => 79, memfd_create => 319 },
  arm64 => { prctl => 167, setns => 268, unshare => 97, mount => 40, setxattr => 5, setsid => 157, pidfd_open => 434, pidfd_getfd => 438,
    open_tree => 428, move_mount => 429, mount_setattr => 442, umount2 => 39, close => 57, close_range => 436, setgroups => 159, setresuid => 147, setresgid => 149, capset => 91, getcwd => 17, memfd_create => 279 },
);
our $machine = 'x64';

our %namespace = (
  mnt => 0x00020000, cgroup => 0x02000000, uts => 0x04000000, ipc => 0x08000000, user => 0x10000000, pid => 0x20000000,
  net => 0x40000000,
);

# What programs inside may do with their own files, processes and ports, and nothing that reaches the kernel.
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
  return syscall($numbers{$machine}{$name}, @arguments);
}

sub call {
  my ($name, @arguments) = @_;
  my $answer = attempt($name, @arguments);
  die "$name: $!\n" if $answer < 0;
  return $answer;
}

# As the kernel knows it. It writes into the scalar itself, so that this cannot go through copies as the others do.
sub current_directory {
  my $buffer = "\0" x 4096;
  my $length = syscall($numbers{$machine}{getcwd}, $buffer, 4096);
  die "getcwd: $!\n" if $length < 0;
  return substr $buffer, 0, $length - 1;
}

# Whatever else was open where the platform was started stays with the platform.
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

# Afterwards nothing that is executed can have more than these, whatever it is.
sub cut_capabilities {
  my %kept = map { $_ => 1 } @capabilities;
  for my $one (0 .. 63) {
    next if $kept{$one};
    # The kernel knows fewer than these and refuses the first one it does not know.
    last if attempt('prctl', 24, $one, 0, 0, 0) < 0;
  }
}

# Those of this process itself, which executes nothing that would take over the smaller set, or not yet.
sub drop_capabilities {
  my $bits = 0;
  $bits |= 1 << $_ for @capabilities;
  my ($header, $sets) = (pack('L l', 0x20080522, 0), pack('L6', $bits, $bits, 0, 0, 0, 0));
  call('capset', $header, $sets);
}

# What a command that enters is to do, from the environment, in which nothing of it is left: lists of words by name.
sub take_request {
  my $text = '';
  for (my $part = 0; defined(my $more = delete $ENV{"BERTH_ENTER_$part"}); $part++) { $text .= $more }
  return read_words($text);
}

# Lists of words by name: the name, how many there are, and then they.
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

# As a single thread where that is possible: to move a process of many, the kernel waits until all processors have come
# by, which takes longer than everything else here.
sub join_group {
  my ($members) = @_;
  my $threads = $members =~ s/cgroup\.procs$/tasks/r;
  write_file(-e $threads ? $threads : $members, "0\n");
}

# Into the box by such a request, with no more rights than its processes have. Whatever Perl would load from now on is
# the box's, so that it loads nothing. False when the box does not run.
sub enter_by_request {
  my (%request) = @_;
  $machine = $request{machine}[0];
  my $is_isolated = $request{way}[0] ne 'none';
  @capabilities = () if $request{privileges}[0] eq 'minimal';
  my $filter = $is_isolated ? read_file($request{filter}[0]) // die "no filter\n" : '';
  join_group($_) for @{$request{cgroup}};
  if ($is_isolated) {
    enter_box($request{service}[0], $request{uid}[0], $request{first}[0]) or return 0;
    cut_capabilities();
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
  call('prctl', 38, 1, 0, 0, 0);
}

sub apply_filter {
  my ($filter) = @_;
  my $program = pack('S x6 P', length($filter) / 8, $filter);
  call('prctl', 22, 2, $program, 0, 0);
}

# The process that s6 watches for this box, if it is that of this box: numbers are used again by other processes.
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

# The first process of a box is the child of bwrap, which is the child of what s6 watches. It counts as soon as bwrap has
# become what it was to run: before that its file system is not in place. In a machine it stays bwrap, as any user of the
# range, and has a child as soon as all is in place.
sub first_process {
  my ($service, $uid, $name) = @_;
  $name //= 's6-svscan';
  my $watched = supervised_process($service) or return 0;
  my $bwrap = child_of($watched) or return 0;
  my $first = child_of($bwrap) or return 0;
  my $status = read_file("/proc/$first/status") // '';
  return 0 if $status !~ /^Name:\t$name\n.*^Uid:\t(\d+)\t.*^NSpid:\t[\t0-9]*\t1\n/ms;
  return $1 == $uid ? $first : 0 if $name ne 'bwrap';
  return $1 >= $uid && $1 < $uid + 65536 && child_of($first) ? $first : 0;
}

# Into all namespaces of the first process at once. It is looked up again after it was taken hold of, so that it cannot
# have been replaced by another one with its number in between.
sub enter_box {
  my ($service, $uid, $name) = @_;
  my $first = first_process($service, $uid, $name) or return 0;
  my $hold = attempt('pidfd_open', $first, 0);
  return 0 if $hold < 0;
  my $same = first_process($service, $uid, $name) == $first;
  my $flags = 0;
  $flags |= $_ for values %namespace;
  my $entered = $same && attempt('setns', $hold, $flags) == 0;
  call('close', $hold);
  return $entered;
}

# A user namespace of an ordinary user has one group only and does not let it be dropped.
sub become {
  my $uid = $_[0] + 0; # a string would be taken for an address in memory
  attempt('setgroups', 0, 0);
  call('setresgid', $uid, $uid, $uid);
  call('setresuid', $uid, $uid, $uid);
}

1;
