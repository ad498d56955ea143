# The few things that a box needs of the kernel's network, asked for directly: starting programs for them would take
# longer than all the rest of a start.
use strict;

my $sequence = 0;

# An attribute: its length, its number, its content, filled up to four bytes.
sub attribute {
  my ($number, $content) = @_;
  return pack('S S a* x![L]', 4 + length $content, $number, $content);
}

# True when it was done. With the answer of the kernel in $! when not.
sub ask {
  my ($family, $type, $flags, $body) = @_;
  socket(my $socket, 16, 3, $family) or return 0;
  my $message = pack('L S S L L a*', 16 + length $body, $type, 1 | 4 | $flags, ++$sequence, 0, $body);
  defined syswrite($socket, $message) or return 0;
  sysread($socket, my $answer, 65536) or return 0;
  my (undef, $kind, undef, undef, undef, $error) = unpack 'L S S L L l', $answer;
  return 1 if $kind != 2 || $error == 0;
  $! = -$error;
  return 0;
}

sub link_index {
  my ($name) = @_;
  socket(my $socket, 2, 2, 0) or die "socket: $!\n";
  my $request = pack('a16 x24', $name);
  return ioctl($socket, 0x8933, $request) ? unpack('x16 l', $request) : 0;
}

my %flag = (replace => 0x100, exclusive => 0x200, create => 0x400);

# Two ends, the second in the network namespace of another process, where it has yet to be brought up.
sub add_pair {
  my ($name, $mac, $peer, $peer_mac, $pid) = @_;
  my $up = pack('C x S l L L', 0, 0, 0, 1, 1);
  my $down = pack('C x S l L L', 0, 0, 0, 0, 0);
  my $other = $down . attribute(3, "$peer\0") . attribute(1, bytes_of_mac($peer_mac)) . attribute(19, pack 'L', $pid);
  my $kind = attribute(1, 'veth') . attribute(2, attribute(1, $other));
  my $body = $up . attribute(3, "$name\0") . attribute(1, bytes_of_mac($mac)) . attribute(18, $kind);
  ask(0, 16, $flag{create} | $flag{exclusive}, $body) or die "add the interface $name: $!\n";
}

sub bytes_of_mac {
  return pack 'C6', map { hex } split /:/, $_[0];
}

sub bytes_of_address {
  return pack 'C4', split /\./, $_[0];
}

sub bring_up {
  my ($name) = @_;
  socket(my $socket, 2, 2, 0) or die "socket: $!\n";
  my $request = pack('a16 s x22', $name, 0x41); # up, running
  ioctl($socket, 0x8914, $request) or die "bring up $name: $!\n";
}

sub remove_link {
  my ($name) = @_;
  ask(0, 17, 0, pack('C x S l L L', 0, 0, 0, 0, 0) . attribute(3, "$name\0")) or die "remove the interface $name: $!\n";
}

sub add_address {
  my ($name, $address, $bits) = @_;
  my $bytes = bytes_of_address($address);
  my $body = pack('C C C C L', 2, $bits, 0, 0, link_index($name)) . attribute(2, $bytes) . attribute(1, $bytes);
  ask(0, 20, $flag{create} | $flag{replace}, $body) or die "add the address $address: $!\n";
}

sub add_default_route {
  my ($name, $gateway) = @_;
  my $body = pack('C8 L', 2, 0, 0, 0, 254, 4, 0, 1, 0)
    . attribute(5, bytes_of_address($gateway)) . attribute(4, pack 'L', link_index($name));
  ask(0, 24, $flag{create} | $flag{replace}, $body) or die "add the route to $gateway: $!\n";
}

# A chain of rules for both versions of addresses.
sub has_chain {
  my ($table, $chain) = @_;
  my $body = pack('C C n', 1, 0, 0) . attribute(1, "$table\0") . attribute(3, "$chain\0");
  return ask(12, 10 << 8 | 4, 0, $body);
}

1;
