# Starts a box in the foreground, by the file that is the only argument: lines of a key and a value. It makes the
# namespaces, mounts and network of the box and gives way to bwrap. Everything dies with the first process, so that the
# next start finds nothing of this one.
use strict;

our ($machine, %namespace);
require($0 =~ s{[^/]*$}{}r . $_) for 'lib.pl', 'mount.pl', '../network/netlink.pl';

my %config = read_config($ARGV[0]);
$machine = $config{machine};
my $is_full = $config{way} eq 'full';
# A machine runs the program of an image: its layers are those of the image, and nothing of the host is in it.
my $is_machine = exists $config{program};
# A sandbox may begin with an image as well. Then it has the programs of the host that supervise its services, and no
# others.
my $has_image = exists $config{tools};
require($0 =~ s{[^/]*$}{}r . $_) for $is_machine ? ('user.pl', '../machine/start.pl') : $has_image ? ('image.pl', '../machine/start.pl') : ();
require($0 =~ s{[^/]*$}{}r . '../network/private.pl') if $config{'private-link'};

set_limits();
chdir $config{directory} or die "$config{directory}: $!\n";
$is_machine ? begin_machine(\%config) : $has_image ? () : remove_links();
my $network = $config{address} ? start_network() : undef;
my $userns = $is_full ? make_user_namespace($config{uid}) : enter_own_namespace();
call('unshare', $namespace{mnt});
mount_at('none', '/', 'none', 0x80000 | 0x4000); # slave, with all below
if ($is_machine) {
  my $program = prepare_machine($userns, \%config, $config{layer});
  finish_network($network) if $network;
  run_machine($userns, \%config, $program);
}
$has_image ? mount_box_image($userns, \%config, $config{layer}) : mount_layers($userns);
mount_view($_, \%config) for views();
finish_network($network) if $network;
give_way($userns);

# A reboot took the groups and their limits away; the first were made again by whoever started this.
sub set_limits {
  for (@{$config{limit}}) {
    my ($file, $value) = split / /, $_, 2;
    write_file($file, $value) or print "cannot limit $file: $!\n";
  }
}

# What is mounted over lies in the layer that the box writes. A link there would lead the mount out of it.
sub remove_links {
  for my $place (qw(etc proc dev run usr .berth .sprite)) {
    unlink "upper/$place" if -l "upper/$place";
  }
  unlink 'upper/etc/resolv.conf' if -l 'upper/etc/resolv.conf';
}

# Relative paths, so that the list of mounts inside does not tell where things lie on the host.
sub mount_layers {
  my ($userns) = @_;
  my $extra = $is_full ? '' : ',userxattr';
  my $quiet = 2 | 4; # nosuid, nodev
  map_owners($userns, $config{base}, 'lower/base');
  mount_at('overlay', 'root', 'overlay', $quiet, "lowerdir=lower/base,upperdir=upper,workdir=work$extra");
  return if !$is_full;
  map_owners($userns, $config{mask}, 'lower/mask');
  map_owners($userns, '/usr', 'lower/usr');
  mount_at('overlay', 'root/usr', 'overlay', $quiet, 'lowerdir=lower/mask:lower/usr,upperdir=upper-usr,workdir=work-usr');
}

# The network namespace belongs to the host: nobody inside can change anything about it. Its set-up runs beside that
# of the mounts. The rules come first, so that no box is ever without them, also after a reboot.
sub start_network {
  open(my $outside, '<', '/proc/self/ns/net') or die "network namespace: $!\n";
  my @uplinks = default_links();
  call('unshare', $namespace{net});
  # Also where the host has switched it off.
  write_file('/proc/sys/net/ipv6/conf/lo/disable_ipv6', '0');
  bring_up('lo');
  # Any port is open to everybody inside, and everybody may ping.
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
  # What a machine may send and receive, before it can.
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
  # Looking takes a tenth of the time of changing.
  if (!has_chain($config{'rules-table'}, $config{'rules-chain'})) {
    system('nft', '-f', $config{rules}) == 0 or die "nft ended with $?\n";
  }
  # What is allowed by name is kept in the kernel alone, and a start may be the first one after a reboot.
  if (-e 'policy.nft') {
    system('nft', '-f', 'policy.nft') == 0 or die "nft ended with $?\n";
  }
  # Nobody else has this name: what holds it is left from an earlier life that is about to go.
  remove_link($link) if link_index($link);
  add_pair($link, $config{'host-mac'}, 'eth0', $config{mac}, $main);
  add_address($link, $config{'host-address'}, 30);
  write_file("/proc/sys/net/ipv6/conf/$link/disable_ipv6", '1');
  write_file("/proc/sys/net/ipv4/conf/$link/rp_filter", '1');
  # Of these interfaces only, where switching it on for all would make a router of the host.
  write_file("/proc/sys/net/ipv4/conf/$_/forwarding", '1') for $link, @uplinks;
}

sub connect_inside {
  lead_to_loopback();
  bring_up('eth0');
  add_address('eth0', $config{address}, 30);
  add_default_route('eth0', $config{'host-address'});
  write_file('/proc/sys/net/ipv6/conf/eth0/disable_ipv6', '1');
  write_file('/proc/sys/net/ipv4/conf/eth0/route_localnet', '1');
}

# What listens on loopback only is reached from the host as well. The kernel takes some time for it, and nothing listens
# yet: nobody waits. It belongs to nobody either, so that the first process stays easy to find.
sub lead_to_loopback {
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    exit 0 if fork // die "fork: $!\n";
    open(STDIN, '<', '/dev/null');
    # Nothing leads to the last chain. That it asks is enough to have connections of the private network followed, so that
    # a policy that comes later knows who began them.
    exec 'nft', <<'END' . ($config{'private-link'} ? <<'END' : '');
table ip box {
  chain arriving {
    type nat hook prerouting priority -100
    iifname "eth0" meta l4proto tcp dnat to 127.0.0.1
  }
}
END
table ip6 box {
  chain following {
    ct direction reply
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

# Of the host.
sub show_programs {
  return (
    (map { ('--ro-bind', "/$_", "/$_") } grep { -d "/$_" && !-l "/$_" } qw(bin sbin lib lib32 lib64 libx32)),
    $is_full ? () : ('--ro-bind', '/usr', '/usr', '--bind', 'upper-usr/local', '/usr/local', '--tmpfs', '/usr/src'),
  );
}

# Where they expect each other: see box-tools.ts.
sub show_tools {
  return (
    (map { ('--ro-bind', "$config{tools}/$_", "/.berth/$_") } 'bin', 'lib'),
    (map { ('--symlink', "bin/$_", "/.berth/$_") } 's6-supervise', 's6-ftrigrd'),
  );
}

sub give_way {
  my ($userns) = @_;
  open(my $filter, '<', $config{filter}) or die "$config{filter}: $!\n";
  close_on_exec();
  # Both stay open over exec.
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
    $has_image ? () : show_programs(),
    '--proc', '/proc', '--dev', '/dev', '--perms', '1777', '--tmpfs', '/dev/shm',
    $has_image ? () : ('--tmpfs', '/run', '--perms', '1777', '--dir', '/run/lock'),
    '--ro-bind', 'shown/resolv.conf', '/etc/resolv.conf',
    '--tmpfs', '/.berth', '--ro-bind', 'service', '/.berth/service', '--bind', 'run', '/.berth/run',
    $has_image ? show_tools() : (), '--remount-ro', '/.berth',
    '--tmpfs', '/.sprite', '--dir', '/.sprite/logs', '--bind', 'log', '/.sprite/logs/services',
    '--ro-bind', 'shown/policy', '/.sprite/policy', '--ro-bind', 'shown/version.txt', '/.sprite/version.txt',
    '--ro-bind', 'shown/llm.txt', '/.sprite/llm.txt', '--ro-bind', 'shown/bin', '/.sprite/bin',
    # One that was prepared by an older version has no such directory yet.
    '--ro-bind-try', 'shown/checkpoints', '/.sprite/checkpoints',
    '--ro-bind', 'api/open', '/.sprite/inside', '--symlink', 'inside/api.sock', '/.sprite/api.sock', '--remount-ro', '/.sprite',
    '--clearenv', '--setenv', 'PATH', $config{path}, '--setenv', 'LANG', 'C.UTF-8', '--setenv', 'HOME', '/home/sprite',
    '--chdir', '/', '--', split(/\t/, $config{command}),
  );
  become($config{uid}) if $is_full;
  # A shell is the smallest program that hands a signal on: bwrap would die of it and take everything along, where
  # the first process inside ends its services in peace.
  # That one gets it when it listens: before, the first process of a namespace is deaf to it.
  my $watch = watching(<<'END');
stop() {
  while kill -0 $bwrap 2>/dev/null; do
    first= rest=
    read -r first rest < /proc/$bwrap/task/$bwrap/children
    listens "$first" && kill -TERM "$first" && return
    sleep 0.01
  done
}
listens() {
  [ -r "/proc/$1/status" ] || return
  while read -r key mask; do
    # The bit of this signal, in what is held back or caught.
    case $key$mask in SigBlk:*[4567cdef]??? | SigCgt:*[4567cdef]???) return 0 ;; esac
  done < "/proc/$1/status"
  return 1
}
trap stop TERM
END
  exec '/bin/sh', '-c', $watch, 'box', @command or die "sh: $!\n";
}

# The shell around bwrap: what is given sets its trap, in which $bwrap is the process to look below.
sub watching {
  my ($trap) = @_;
  return $trap . <<'END';
"$@" &
bwrap=$!
while :; do
  wait $bwrap
  code=$?
  kill -0 $bwrap 2>/dev/null && continue
  # Where a signal broke the wait off, its code is that of the signal, and the true one is still to be had.
  wait $bwrap 2>/dev/null
  last=$?
  [ $last = 127 ] && exit $code
  exit $last
done
END
}
