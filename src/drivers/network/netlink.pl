# Network configuration of boxes through netlink sockets. Running ip(8) and nft(8) for it would take longer than the
# rest of a start. A library: the programs that set up boxes and machines load it.
use strict;

my $sequence = 0;
my ($af_inet, $af_netlink, $sock_dgram, $sock_raw) = (2, 16, 2, 3);
my ($netlink_route, $netlink_netfilter) = (0, 12);
my %request = (new_link => 16, delete_link => 17, new_address => 20, new_route => 24, get_chain => 10 << 8 | 4);
my %flag = (request => 1, acknowledge => 4, replace => 0x100, exclusive => 0x200, create => 0x400);
my $error_message = 2;
my ($get_index, $set_flags) = (0x8933, 0x8914); # ioctls SIOCGIFINDEX and SIOCSIFFLAGS

# Packs an attribute: its length, its type and its content, padded to four bytes.
sub attribute {
  my ($type, $content) = @_;
  return pack('S S a* x![L]', 4 + length $content, $type, $content);
}

# Sends a request and waits for the acknowledgement. Returns false and sets $! if the kernel refuses it.
sub ask {
  my ($protocol, $type, $flags, $body) = @_;
  socket(my $socket, $af_netlink, $sock_raw, $protocol) or return 0;
  my $all = $flag{request} | $flag{acknowledge} | $flags;
  my $message = pack('L S S L L a*', 16 + length $body, $type, $all, ++$sequence, 0, $body);
  defined syswrite($socket, $message) or return 0;
  sysread($socket, my $answer, 65536) or return 0;
  my (undef, $kind, undef, undef, undef, $error) = unpack 'L S S L L l', $answer;
  return 1 if $kind != $error_message || $error == 0;
  $! = -$error;
  return 0;
}

# Returns 0 if there is no interface of this name.
sub link_index {
  my ($name) = @_;
  socket(my $socket, $af_inet, $sock_dgram, 0) or die "socket: $!\n";
  my $query = pack('a16 x24', $name);
  return ioctl($socket, $get_index, $query) ? unpack('x16 l', $query) : 0;
}

# Adds a veth pair. The peer is created, still down, in the network namespace of the given process.
sub add_pair {
  my ($name, $mac, $peer, $peer_mac, $pid) = @_;
  my $up = pack('C x S l L L', 0, 0, 0, 1, 1);
  my $down = pack('C x S l L L', 0, 0, 0, 0, 0);
  my $other = $down . attribute(3, "$peer\0") . attribute(1, bytes_of_mac($peer_mac)) . attribute(19, pack 'L', $pid);
  my $kind = attribute(1, 'veth') . attribute(2, attribute(1, $other));
  my $body = $up . attribute(3, "$name\0") . attribute(1, bytes_of_mac($mac)) . attribute(18, $kind);
  ask($netlink_route, $request{new_link}, $flag{create} | $flag{exclusive}, $body) or die "add the interface $name: $!\n";
}

sub bytes_of_mac {
  return pack 'C6', map { hex } split /:/, $_[0];
}

sub bytes_of_address {
  return pack 'C4', split /\./, $_[0];
}

sub bring_up {
  my ($name) = @_;
  socket(my $socket, $af_inet, $sock_dgram, 0) or die "socket: $!\n";
  my $change = pack('a16 s x22', $name, 0x41); # IFF_UP and IFF_RUNNING
  ioctl($socket, $set_flags, $change) or die "bring up $name: $!\n";
}

sub remove_link {
  my ($name) = @_;
  my $body = pack('C x S l L L', 0, 0, 0, 0, 0) . attribute(3, "$name\0");
  ask($netlink_route, $request{delete_link}, 0, $body) or die "remove the interface $name: $!\n";
}

sub add_address {
  my ($name, $address, $bits) = @_;
  my $bytes = bytes_of_address($address);
  my $body = pack('C C C C L', 2, $bits, 0, 0, link_index($name)) . attribute(2, $bytes) . attribute(1, $bytes);
  ask($netlink_route, $request{new_address}, $flag{create} | $flag{replace}, $body) or die "add the address $address: $!\n";
}

sub add_default_route {
  my ($name, $gateway) = @_;
  my $body = pack('C8 L', 2, 0, 0, 0, 254, 4, 0, 1, 0)
    . attribute(5, bytes_of_address($gateway)) . attribute(4, pack 'L', link_index($name));
  ask($netlink_route, $request{new_route}, $flag{create} | $flag{replace}, $body) or die "add the route to $gateway: $!\n";
}

# Whether the table of the inet family has this chain.
sub has_chain {
  my ($table, $chain) = @_;
  my $body = pack('C C n', 1, 0, 0) . attribute(1, "$table\0") . attribute(3, "$chain\0");
  return ask($netlink_netfilter, $request{get_chain}, 0, $body);
}

1;
