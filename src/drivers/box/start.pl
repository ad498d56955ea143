# Starts a box in the foreground: makes its namespaces, mounts and network, and executes bwrap. All of them end with the first
# process, so nothing is left for the next start.
# Usage: perl start.pl <config file of the box>
use strict;

our ($machine, %namespace);
my $here = $0 =~ s{[^/]*$}{}r;
require($here . $_) for 'lib.pl', 'mount.pl', '../network/netlink.pl';

my %config = read_config($ARGV[0]);
$machine = $config{machine};
my $is_full = $config{way} eq 'full';
# A machine runs the program of an image and contains nothing of the host.
my $is_machine = exists $config{program};
# A sandbox may be made from an image as well. Of the programs of the host it then has only those that supervise services.
my $has_image = exists $config{tools};
require($here . $_) for $is_machine ? ('user.pl', '../machine/start.pl') : $has_image ? ('image.pl', '../machine/start.pl') : ();
require($here . '../machine/container.pl') if @{$config{container}};
require($here . '../network/private.pl') if $config{'private-link'};
# Read now, because the user that the box runs as may not be able to.
my ($stop_script, $wait_script) = map { read_file($here . $_) // die "$here$_: $!\n" } 'stop.sh', 'wait.sh';

set_limits();
raise_kernel_limits() if $is_full;
chdir $config{directory} or die "$config{directory}: $!\n";
$is_machine ? begin_machine(\%config) : $has_image ? () : remove_obstacles();
my $network = $config{address} ? start_network() : undef;
my $userns = $is_full ? make_user_namespace($config{uid}) : enter_own_namespace();
call('unshare', $namespace{mnt});
mount_at('none', '/', 'none', 0x80000 | 0x4000); # MS_SLAVE | MS_REC
leave_mounts(\%config);
enter_reachable($config{directory}) if $is_machine && $is_full;
if (@{$config{container}}) {
  finish_network($network) if $network;
  run_containers($userns, \%config);
}
mount_terminals();
if ($is_machine) {
  my $program = prepare_machine($userns, \%config, $config{layer});
  finish_network($network) if $network;
  run_machine($userns, \%config, $program);
}
if ($has_image) {
  mount_box_image($userns, \%config, $config{layer});
  mkdir 'tools', 0711;
  mount_at($config{tools}, 'tools', 'none', 0x1000); # MS_BIND
} else {
  mount_layers($userns);
}
mount_view($_, \%config) for views();
finish_network($network) if $network;
run_bwrap($userns);

# Sets the limits again after a reboot. The control groups were made again by the run script of the service.
sub set_limits {
  for (@{$config{limit}}) {
    my ($file, $value) = split / /, $_, 2;
    write_file($file, $value) or print "cannot limit $file: $!\n";
  }
}

# Counters that the kernel keeps for all boxes together, with values at which no box can exhaust them: what they count is
# charged to the memory of a box, or limited for each box. They are only ever raised.
sub raise_kernel_limits {
  my %least = (
    'kernel/pty/max' => 1 << 18, # 256 for each of 1023 boxes
    'kernel/pid_max' => 1 << 22,
    'kernel/threads-max' => 1 << 22,
    'fs/file-max' => '9223372036854775807',
    'fs/aio-max-nr' => 1 << 30,
    'net/ipv4/neigh/default/gc_thresh2' => 1 << 13,
    'net/ipv4/neigh/default/gc_thresh3' => 1 << 14,
    'net/ipv6/neigh/default/gc_thresh2' => 1 << 18,
    'net/ipv6/neigh/default/gc_thresh3' => 1 << 19, # 512 for each of 1023 machines
  );
  for my $name (sort { $b cmp $a } keys %least) {
    my $value = read_file("/proc/sys/$name") // next;
    write_file("/proc/sys/$name", $least{$name}) if $value < $least{$name};
  }
}

# Mount points are in the layer that the box writes. A link there would lead a mount elsewhere, and anything but a directory
# would keep the box from starting. The layer marks deleted files by devices with the number 0, which stay.
sub remove_obstacles {
  for my $path (map { "upper/$_" } qw(etc proc dev run usr .berth .sprite)) {
    my ($mode, $device) = (lstat $path)[2, 6];
    unlink $path if defined $mode && !-d _ && !(-c _ && $device == 0);
  }
  my $names = 'upper/etc/resolv.conf';
  unlink $names if -l $names || -e _ && !-f _ && !-d _ && !-c _;
  rename $names, "$names.replaced" if -d $names;
}

# Relative paths, so that /proc/mounts in the box does not show paths of the host.
sub mount_layers {
  my ($userns) = @_;
  my $extra = $is_full ? '' : ',userxattr';
  my $flags = 2 | 4; # nosuid, nodev
  map_owners($userns, $config{base}, 'lower/base');
  mount_at('overlay', 'root', 'overlay', $flags, "lowerdir=lower/base,upperdir=upper,workdir=work$extra");
  return if !$is_full;
  map_owners($userns, $config{mask}, 'lower/mask');
  map_owners($userns, '/usr', 'lower/usr');
  mount_at('overlay', 'root/usr', 'overlay', $flags, 'lowerdir=lower/mask:lower/usr,upperdir=upper-usr,workdir=work-usr');
}

# Makes the network namespace, which belongs to the user namespace of the host, so that the box cannot change it. A child
# process sets it up while the parent mounts. The firewall rules are loaded first, so that no box is ever without them.
sub start_network {
  open(my $outside, '<', '/proc/self/ns/net') or die "network namespace: $!\n";
  my @uplinks = default_links();
  call('unshare', $namespace{net});
  # IPv6 on loopback, also where the host has disabled it.
  write_file('/proc/sys/net/ipv6/conf/lo/disable_ipv6', '0');
  bring_up('lo');
  # All users in the box may listen on low ports and send pings.
  write_file('/proc/sys/net/ipv4/ip_unprivileged_port_start', '0');
  write_file('/proc/sys/net/ipv4/ping_group_range', '0 2147483647');
  my $main = $$;
  my $child = fork // die "fork: $!\n";
  return $child if $child;
  open(my $inside, '<', '/proc/self/ns/net') or die "network namespace: $!\n";
  call('setns', fileno $outside, $namespace{net});
  connect_outside($main, @uplinks);
  connect_private($main, %config) if $config{'private-link'};
  call('setns', fileno $inside, $namespace{net});
  # The traffic policy of a machine must be in force before the machine has a network.
  !-e 'traffic.nft' || system('nft', '-f', 'traffic.nft') == 0 or die "nft ended with $?\n";
  connect_inside();
  connect_private_inside(%config) if $config{'private-link'};
  exit 0;
}

sub default_links {
  return map { (split)[1] eq '00000000' ? (split)[0] : () } split /\n/, read_file('/proc/net/route') // '';
}

sub connect_outside {
  my ($main, @uplinks) = @_;
  my $link = $config{link};
  # Testing for the chain takes a tenth of the time of loading the rules.
  if (!has_chain($config{'rules-table'}, $config{'rules-chain'})) {
    system('nft', '-f', $config{rules}) == 0 or die "nft ended with $?\n";
  }
  # The policy of the box, which a reboot removes from the kernel.
  if (-e 'policy.nft') {
    system('nft', '-f', 'policy.nft') == 0 or die "nft ended with $?\n";
  }
  # The name is unique, so an existing link belongs to an earlier run of this box whose namespace is about to end.
  remove_link($link) if link_index($link);
  add_pair($link, $config{'host-mac'}, 'eth0', $config{mac}, $main);
  add_address($link, $config{'host-address'}, 30);
  write_file("/proc/sys/net/ipv6/conf/$link/disable_ipv6", '1');
  write_file("/proc/sys/net/ipv4/conf/$link/rp_filter", '1');
  # Only for these interfaces, because forwarding on all would make the host a router.
  write_file("/proc/sys/net/ipv4/conf/$_/forwarding", '1') for $link, @uplinks;
}

sub connect_inside {
  set_inner_rules();
  bring_up('eth0');
  add_address('eth0', $config{address}, 30);
  add_default_route('eth0', $config{'host-address'});
  write_file('/proc/sys/net/ipv6/conf/eth0/disable_ipv6', '1');
  write_file('/proc/sys/net/ipv4/conf/eth0/route_localnet', '1');
}

# Redirects connections from the host to loopback, where many programs listen, and limits what the kernel remembers about
# connections, which is not charged to the memory of the box. nft takes some time, and nothing listens yet, so it runs in the
# background, as an orphan: the children of this process are used to find the first process of the box.
sub set_inner_rules {
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    exit 0 if fork // die "fork: $!\n";
    open(STDIN, '<', '/dev/null');
    # The last chain also makes the kernel track connections of the private network, so that a policy that is added later
    # knows who opened them. It bounds the addresses that a machine can make the kernel look for at a time: unanswered ones
    # stay in a table of all machines for three seconds.
    exec 'nft', <<'END' . ($config{'private-link'} ? <<'END' : '');
table ip box {
  chain arriving {
    type nat hook prerouting priority -100
    iifname "eth0" meta l4proto tcp dnat to 127.0.0.1
  }
}
table inet limits {
  chain local-arriving {
    type filter hook prerouting priority -300
    iifname "lo" notrack
  }
  chain local-leaving {
    type filter hook output priority -300
    oifname "lo" notrack
  }
  chain arriving {
    type filter hook prerouting priority -50
    iifname != "lo" ct state new ct count over 16384 drop
  }
  chain leaving {
    type filter hook output priority -50
    oifname != "lo" ct state new ct count over 8192 drop
  }
}
END
table ip6 limits {
  set peers {
    type ipv6_addr
    size 512
    flags dynamic, timeout
    timeout 10s
  }
  chain searching {
    type filter hook output priority -40
    oifname != "eth1" accept
    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
    ct direction reply accept
    update @peers { ip6 daddr } accept
    drop
  }
}
END
  }
  waitpid $child, 0;
}

sub finish_network {
  my ($child) = @_;
  waitpid $child, 0;
  die "the network could not be set up\n" if $?;
}

# The bwrap arguments that mount the programs of the host.
sub program_arguments {
  return (
    (map { ('--ro-bind', "/$_", "/$_") } grep { -d "/$_" && !-l "/$_" } qw(bin sbin lib lib32 lib64 libx32)),
    $is_full ? () : ('--ro-bind', '/usr', '/usr', '--bind', 'upper-usr/local', '/usr/local', '--tmpfs', '/usr/src'),
  );
}

# The bwrap arguments that mount the tools at the paths that are compiled into them; see tools.ts. bwrap runs as the root user
# of the box, who may not traverse the directory that the tools are in.
sub tool_arguments {
  return (
    (map { ('--ro-bind', "tools/$_", "/.berth/$_") } 'bin', 'lib'),
    (map { ('--symlink', "bin/$_", "/.berth/$_") } 's6-supervise', 's6-ftrigrd'),
  );
}

sub run_bwrap {
  my ($userns) = @_;
  open(my $filter, '<', $config{filter}) or die "$config{filter}: $!\n";
  close_on_exec();
  # bwrap inherits both.
  fcntl($_, 2, 0) for grep { $_ } $userns, $filter;
  my @names = $config{privileges} eq 'minimal' ? () : capability_names();
  my $directory = $config{directory};
  my @command = (
    'env', '--default-signal', 'bwrap',
    $userns ? ('--userns', fileno $userns) : (),
    '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup',
    $config{address} ? () : '--unshare-net',
    '--die-with-parent', '--as-pid-1', '--new-session', '--seccomp', fileno $filter,
    '--cap-drop', 'ALL', (map { ('--cap-add', "CAP_$_") } @names),
    '--hostname', $config{hostname},
    '--bind', 'root', '/',
    $has_image ? () : program_arguments(),
    '--proc', '/proc', device_arguments(),
    $has_image ? () : ('--tmpfs', '/run', '--perms', '1777', '--dir', '/run/lock'),
    '--ro-bind', 'shown/resolv.conf', '/etc/resolv.conf',
    '--tmpfs', '/.berth', '--ro-bind', 'service', '/.berth/service', '--bind', 'run', '/.berth/run',
    $has_image ? tool_arguments() : (), '--remount-ro', '/.berth',
    '--tmpfs', '/.sprite', '--dir', '/.sprite/logs', '--bind', 'log', '/.sprite/logs/services',
    '--ro-bind', 'shown/policy', '/.sprite/policy', '--ro-bind', 'shown/version.txt', '/.sprite/version.txt',
    '--ro-bind', 'shown/llm.txt', '/.sprite/llm.txt', '--ro-bind', 'shown/bin', '/.sprite/bin',
    # A box that was set up by an older version does not have the directory.
    '--ro-bind-try', 'shown/checkpoints', '/.sprite/checkpoints',
    '--ro-bind', 'api/open', '/.sprite/inside', '--symlink', 'inside/api.sock', '/.sprite/api.sock', '--remount-ro', '/.sprite',
    '--clearenv', '--setenv', 'PATH', $config{path}, '--setenv', 'LANG', 'C.UTF-8', '--setenv', 'HOME', '/home/sprite',
    '--chdir', '/', '--', split(/\t/, $config{command}),
  );
  become($config{uid}) if $is_full;
  # A shell is the smallest program that can forward signals to the first process inside.
  exec '/bin/sh', '-c', watching($stop_script), 'box', @command or die "sh: $!\n";
}

# The script of the shell that runs bwrap. $trap is the part that installs a signal handler, in which $bwrap is the pid.
sub watching {
  my ($trap) = @_;
  return $trap . $wait_script;
}
