# Ends connections of a process as if the other side had closed them: pooler-session.pl <machine> <pid>. Its input names
# the other sides, one on a line, as address and port. Where the host lets nobody reach into the process, it leaves them
# alone.
use strict;
use Socket qw(AF_INET AF_INET6 inet_ntop sockaddr_family unpack_sockaddr_in unpack_sockaddr_in6);

our $machine;
require($0 =~ s{[^/]*$}{}r . '../../box/lib.pl');

($machine, my $pid) = @ARGV;
chomp(my @sides = <STDIN>);
my %ending = map { $_ => 1 } @sides;

my $process = attempt('pidfd_open', $pid + 0, 0);
exit 0 if $process < 0;

for my $file (glob "/proc/$pid/fd/*") {
  my ($number) = $file =~ m{(\d+)$};
  next if (readlink($file) // '') !~ /^socket:/;
  my $copy = attempt('pidfd_getfd', $process, $number + 0, 0);
  next if $copy < 0 || !open(my $socket, '+<&=', $copy);
  my $address = getpeername($socket) or next;
  shutdown($socket, 2) if $ending{side($address)};
}

# The sessions of the server, on a socket of the file system, have none.
sub side {
  my ($address) = @_;
  my $family = sockaddr_family($address);
  my $unpack = { AF_INET, \&unpack_sockaddr_in, AF_INET6, \&unpack_sockaddr_in6 }->{$family} or return '';
  my ($port, $host) = $unpack->($address);
  return inet_ntop($family, $host) . " $port";
}
