# Connects a machine to its private network: creates the bridge of the network on the host and a second veth pair. A
# library: the program that starts a machine calls connect_private on the host and then connect_private_inside in the
# machine's network namespace. Addresses are 32 hexadecimal digits.
use strict;

my ($shared, $exclusive) = (1, 2); # of flock
my %request = (new_link => 16, new_address => 20, new_route => 24, new_neighbour => 28);
my %create = (new => 0x400 | 0x200, or_replace => 0x400 | 0x100);

# Connects the network namespace of process $main. The rules and their sets come before the interface, so the machine is
# never in its network without them. The lock keeps private-sweep.pl from removing a bridge that has no machine yet.
sub connect_private {
  my ($main, %config) = @_;
  my ($link, $bridge) = @config{'private-link', 'private-bridge'};
  open(my $lock, '>', $config{'private-lock'}) or die "$config{'private-lock'}: $!\n";
  flock($lock, is_up($bridge) ? $shared : $exclusive) or die "lock: $!\n";
  load_rules(\%config) if !has_chain($config{'private-table'}, $config{'private-chain'});
  # A bridge is brought up last, so one that is up is complete.
  if (!is_up($bridge)) {
    flock($lock, $exclusive) or die "lock: $!\n";
    make_bridge(\%config);
  }
  forget_source(\%config);
  add_elements($config{'private-table'}, elements_of($link, $bridge, @config{'private-network', 'private-address'}))
    or die "let $link into its network: $!\n";
  # The name is unique to this machine. An interface that has it belongs to its previous run, which is about to end.
  eval { remove_link($link) } if link_index($link);
  add_port($main, \%config);
  add_neighbour($bridge, @config{'private-address', 'private-mac'});
}

sub connect_private_inside {
  my (%config) = @_;
  write_file('/proc/sys/net/ipv6/conf/eth1/disable_ipv6', '0');
  write_file('/proc/sys/net/ipv6/conf/eth1/accept_ra', '0');
  write_file('/proc/sys/net/ipv6/conf/eth1/addr_gen_mode', '1');
  raise('eth1');
  add_private_address('eth1', $config{'private-address'});
  my $gateway = $config{'private-gateway'};
  add_neighbour('eth1', $gateway, $config{'private-bridge-mac'});
  add_private_route('eth1', $config{'private-network'}, 48, $gateway);
  add_private_route('eth1', $config{'private-resolver'}, 128, $gateway);
}

# Creates the bridge without a link-local address, which the rules would not know.
sub make_bridge {
  my ($config) = @_;
  my ($bridge, $mac) = @$config{'private-bridge', 'private-bridge-mac'};
  my $no_snooping = attribute(23, "\0"); # without a multicast querier, snooping would block neighbour discovery
  my $kind = attribute(1, 'bridge') . attribute(2, $no_snooping);
  my $body = down() . attribute(3, "$bridge\0") . attribute(1, bytes_of_mac($mac)) . attribute(18, $kind);
  link_index($bridge) or ask(0, $request{new_link}, $create{new}, $body) or die "add the bridge $bridge: $!\n";
  write_file("/proc/sys/net/ipv6/conf/$bridge/disable_ipv6", '0');
  write_file("/proc/sys/net/ipv6/conf/$bridge/accept_ra", '0');
  write_file("/proc/sys/net/ipv6/conf/$bridge/addr_gen_mode", '1');
  add_private_address($bridge, $config->{'private-gateway'});
  raise($bridge);
}

sub add_port {
  my ($main, $config) = @_;
  my ($link, $bridge) = @$config{'private-link', 'private-bridge'};
  my $other = down() . attribute(3, "eth1\0") . attribute(1, bytes_of_mac($config->{'private-mac'})) . attribute(19, pack 'L', $main);
  my $body = down() . attribute(3, "$link\0") . attribute(1, bytes_of_mac($config->{'private-host-mac'}))
    . attribute(10, pack 'L', link_index($bridge)) . attribute(18, attribute(1, 'veth') . attribute(2, attribute(1, $other)));
  ask(0, $request{new_link}, $create{new}, $body) or die "add the interface $link: $!\n";
  write_file("/proc/sys/net/ipv6/conf/$link/disable_ipv6", '1');
  raise($link);
}

sub down {
  return pack('C x S l L L', 0, 0, 0, 0, 0);
}

# Sets only IFF_UP. bring_up would clear IFF_MULTICAST, which neighbour discovery needs.
sub raise {
  my ($name) = @_;
  ask(0, $request{new_link}, 0, pack('C x S l L L', 0, 0, link_index($name), 1, 1)) or die "bring up $name: $!\n";
}

sub is_up {
  my ($name) = @_;
  socket(my $socket, 2, 2, 0) or die "socket: $!\n";
  my $query = pack('a16 x24', $name);
  return ioctl($socket, 0x8913, $query) && unpack('x16 s', $query) & 1;
}

sub add_private_address {
  my ($name, $address) = @_;
  my $bytes = pack 'H32', $address;
  my $body = pack('C C C C L', 10, 80, 2, 0, link_index($name)) . attribute(2, $bytes) . attribute(1, $bytes);
  ask(0, $request{new_address}, $create{or_replace}, $body) or die "add the address $address: $!\n";
}

sub add_private_route {
  my ($name, $to, $bits, $gateway) = @_;
  my $body = pack('C8 L', 10, $bits, 0, 0, 254, 4, 0, 1, 0) . attribute(1, pack 'H32', $to)
    . attribute(5, pack 'H32', $gateway) . attribute(4, pack 'L', link_index($name));
  ask(0, $request{new_route}, $create{or_replace}, $body) or die "add the route to $to: $!\n";
}

# Adds a permanent neighbour entry: the host could not discover it, having no address of the network on the bridge.
sub add_neighbour {
  my ($name, $address, $mac) = @_;
  my $body = pack('C x S l S C C', 10, 0, link_index($name), 0x80, 0, 0)
    . attribute(1, pack 'H32', $address) . attribute(2, bytes_of_mac($mac));
  ask(0, $request{new_neighbour}, $create{or_replace}, $body) or die "add the neighbour $address: $!\n";
}

# Loads the rules and adds the machines that run already to their sets. The names of interfaces say which machine is in
# which network.
sub load_rules {
  my ($config) = @_;
  system('nft', '-f', $config->{'private-rules'}) == 0 or die "nft failed with status $?\n";
  my ($prefix) = $config->{'private-link'} =~ /^(.*-)/;
  for my $link (list_links($prefix)) {
    my $bridge = (readlink("/sys/class/net/$link/master") // next) =~ s{.*/}{}r;
    my ($slot, $number) = map { s{.*-}{}r } $link, $bridge;
    my $network = substr($config->{'private-network'}, 0, 6) . sprintf('%06x', $number) . '0' x 20;
    my $address = substr($network, 0, 12) . substr($config->{'private-address'}, 12, 12) . sprintf('%04x', $slot) . '0002';
    add_elements($config->{'private-table'}, elements_of($link, $bridge, $network, $address));
  }
}

sub list_links {
  my ($prefix) = @_;
  opendir(my $links, '/sys/class/net') or die "interfaces: $!\n";
  return grep { index($_, $prefix) == 0 } readdir $links;
}

# Removes the source address of the machine that used this interface before, if it differs: it may be in another
# network.
sub forget_source {
  my ($config) = @_;
  my $note = "$config->{'private-notes'}/$config->{'private-link'}";
  my $before = read_file($note) // '';
  return if $before eq $config->{'private-address'};
  remove_elements($config->{'private-table'}, source_of($config->{'private-link'}, $before)) if $before =~ /^[0-9a-f]{32}$/;
  write_file($note, $config->{'private-address'}) or die "$note: $!\n";
}

sub elements_of {
  my ($link, $bridge, $network, $address) = @_;
  my $whole = substr($network, 0, 12);
  return ([1, 'networks', $bridge, $whole . '0' x 20, $whole . 'f' x 20], source_of($link, $address));
}

sub source_of {
  my ($link, $address) = @_;
  my $own = substr($address, 0, 28);
  return [7, 'sources', $link, $own . '0000', $own . 'ffff'];
}

sub add_elements { return change_elements(12, 0x400, @_) }
sub remove_elements { return change_elements(14, 0, @_) }

# Changes all elements or none. The kernel acknowledges the last one on success and reports the first that failed
# otherwise.
sub change_elements {
  my ($type, $flags, $table, @elements) = @_;
  my $message = sub { pack('L S S L L C C n a*', 20 + length $_[4], $_[0], $_[1], $_[2], 0, $_[3], 0, $_[5] // 0, $_[4]) };
  my $batch = $message->(16, 1, 0, 0, '', 10);
  for my $at (0 .. $#elements) {
    my ($family, $set, $name, $from, $to) = @{$elements[$at]};
    my $key = sub { attribute(0x8000 | $_[0], attribute(1, pack 'a16 H32', $name, $_[1])) };
    my $body = attribute(1, "$table\0") . attribute(2, "$set\0")
      . attribute(0x8003, attribute(0x8001, $key->(1, $from) . $key->(10, $to)));
    my $acknowledge = $at == $#elements ? 4 : 0;
    $batch .= $message->(10 << 8 | $type, 1 | $acknowledge | $flags, 1 + $at, $family, $body);
  }
  $batch .= $message->(17, 1, 1 + @elements, 0, '', 10);
  socket(my $socket, 16, 3, 12) or return 0;
  defined syswrite($socket, $batch) or return 0;
  sysread($socket, my $answer, 65536) or return 0;
  $! = -unpack 'x16 l', $answer;
  return $! == 0;
}

1;
