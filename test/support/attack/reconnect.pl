# Tries to use the connection of a client to connect elsewhere, as a program could that took over a server.
# Usage: perl reconnect.pl <uid>; prints ESCAPED if it succeeds.
use strict;
use POSIX ();
use Socket;

my ($uid) = @ARGV;
my ($own, $own_port) = listening();
my ($other, $other_port) = listening();
my $child = fork // die "fork: $!\n";
if (!$child) {
  POSIX::setgid($uid) && POSIX::setuid($uid) or die "setuid: $!\n";
  accept(my $client, $own) or die "accept: $!\n";
  syswrite $client, "hi";
  connect($client, pack 'S x14', 0) or die "disconnect: $!\n"; # AF_UNSPEC
  print connect($client, pack_sockaddr_in($other_port, INADDR_LOOPBACK)) ? "ESCAPED\n" : "refused\n";
  socket(my $fresh, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
  print connect($fresh, pack_sockaddr_in($other_port, INADDR_LOOPBACK)) ? "ESCAPED\n" : "refused\n";
  exit 0;
}
socket(my $client, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
connect($client, pack_sockaddr_in($own_port, INADDR_LOOPBACK)) or die "connect: $!\n";
sysread $client, my $answer, 2;
print "connected\n" if $answer eq 'hi';
waitpid $child, 0;

sub listening {
  socket(my $socket, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
  bind($socket, pack_sockaddr_in(0, INADDR_LOOPBACK)) or die "bind: $!\n";
  listen($socket, 1) or die "listen: $!\n";
  my ($port) = unpack_sockaddr_in(getsockname $socket);
  return ($socket, $port);
}
