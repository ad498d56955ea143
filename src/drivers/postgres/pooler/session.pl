# Shuts down TCP connections of another process, as if its peers had closed them.
# Usage: session.pl <architecture> <pid> < peers
# Standard input lists the peers, one per line, as address and port. Without permission to duplicate descriptors of the
# process, the connections stay open.
use strict;
use Socket qw(AF_INET AF_INET6 inet_ntop sockaddr_family unpack_sockaddr_in unpack_sockaddr_in6);

our $machine;
require($0 =~ s{[^/]*$}{}r . '../../box/lib.pl');

($machine, my $pid) = @ARGV;
chomp(my @peers = <STDIN>);
my %closing = map { $_ => 1 } @peers;

my $process = attempt('pidfd_open', $pid + 0, 0);
exit 0 if $process < 0;

for my $file (glob "/proc/$pid/fd/*") {
  my ($number) = $file =~ m{(\d+)$};
  next if (readlink($file) // '') !~ /^socket:/;
  my $copy = attempt('pidfd_getfd', $process, $number + 0, 0);
  next if $copy < 0 || !open(my $socket, '+<&=', $copy);
  my $address = getpeername($socket) or next;
  shutdown($socket, 2) if $closing{peer($address)};
}

# Formats a peer address like the input. Connections to the server use a Unix socket and yield an empty string.
sub peer {
  my ($address) = @_;
  my $family = sockaddr_family($address);
  my $unpack = { AF_INET, \&unpack_sockaddr_in, AF_INET6, \&unpack_sockaddr_in6 }->{$family} or return '';
  my ($port, $host) = $unpack->($address);
  return inet_ntop($family, $host) . " $port";
}
