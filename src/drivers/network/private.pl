# The private network of a machine: a bridge of its network on the host, and a second pair of interfaces. Whoever starts
# the machine calls connect_private on the host and then connect_private_inside in its network namespace.
use strict;

my ($shared, $exclusive) = (1, 2);
my %request = (new_link => 16, new_address => 20, new_route => 24, new_neighbour => 28);
my %create = (new => 0x400 | 0x200, or_replace => 0x400 | 0x100);

# Into the namespace of this process. The rules come first, and then what they know the machine by, so that it is never
# in its network without them. The lock keeps a bridge from being removed for having no machine yet.
sub connect_private {
  my ($main, %config) = @_;
  my ($link, $bridge) = @config{'private-link', 'private-bridge'};
  open(my $lock, '>', $config{'private-lock'}) or die "$config{'private-lock'}: $!\n";
  flock($lock, is_up($bridge) ? $shared : $exclusive) or die "lock: $!\n";
  put_rules_in_force(\%config) if !has_chain($config{'private-table'}, $config{'private-chain'});
  # Up is the last thing that it becomes.
  if (!is_up($bridge)) {
    flock($lock, $exclusive) or die "lock: $!\n";
    make_bridge(\%config);
  }
  forget_source(\%config);
  add_elements($config{'private-table'}, elements_of($link, $bridge, @config{'private-network', 'private-address'}))
    or die "let $link into its network: $!\n";
  # Nobody else has this name: what holds it is left from an earlier life that is about to go.
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

# Without an address that it chose itself, since no other is known to the rules.
sub make_bridge {
  my ($config) = @_;
  my ($bridge, $mac) = @$config{'private-bridge', 'private-bridge-mac'};
  my $no_snooping = attribute(23, "\0"); # nobody would ask who listens, and neighbours would not be found
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

# Only this flag: neighbours are found by multicast, which bring_up would switch off.
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

# Addresses come as 32 hexadecimal digits.
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

# Known for good: the host would have to ask for it from an address that it does not have on the bridge.
sub add_neighbour {
  my ($name, $address, $mac) = @_;
  my $body = pack('C x S l S C C', 10, 0, link_index($name), 0x80, 0, 0)
    . attribute(1, pack 'H32', $address) . attribute(2, bytes_of_mac($mac));
  ask(0, $request{new_neighbour}, $create{or_replace}, $body) or die "add the neighbour $address: $!\n";
}

# Machines that run already may have lost what the rules knew them by. Who is in which network follows from the names of
# interfaces.
sub put_rules_in_force {
  my ($config) = @_;
  system('nft', '-f', $config->{'private-rules'}) == 0 or die "nft ended with $?\n";
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

# What was let in by this link before may have been in another network.
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

# All or none of them. The kernel answers for the last one when all went well, and for what failed first otherwise.
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
