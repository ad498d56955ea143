# Makes attempts to leave a box and prints one line for each: its name and what happened, separated by a tab.
# Usage: the numbers of system calls (%number) and what the attempts look for (%given) come before this text, and the
# attempts after it.
use strict;

our (%number, %given);
$| = 1;

# Each attempt runs in a child process, several at a time. One that hangs is ended, as a packet without an answer would.
my @waiting;
sub attempt { push @waiting, [@_] }

sub run_waiting {
  my %running;
  while (@waiting || %running) {
    while (@waiting && keys %running < 16) {
      my $next = shift @waiting;
      my $child = fork // die "fork: $!";
      run_one(@$next) if !$child;
      $running{$child} = $next->[0];
    }
    my $ended = wait;
    my $name = delete $running{$ended} // next;
    syswrite STDOUT, "$name\trefused signal " . ($? & 127) . "\n" if $? & 127;
  }
}

sub run_one {
  my ($name, $work, $seconds) = @_;
  alarm($seconds // 3);
  my $result = eval { $work->() } // "refused $@";
  syswrite STDOUT, "$name\t" . $result =~ s/\n.*//sr . "\n";
  kill 'KILL', -$$ if getpgrp == $$;
  exit 0;
}

sub refused { return 'refused ' . ($! + 0) }

sub sys {
  my ($name, @arguments) = @_;
  defined $number{$name} or return 'refused 38';
  my $answer = syscall($number{$name}, @arguments);
  return $answer < 0 ? refused() : "allowed $answer";
}

sub put {
  my ($path, $text) = @_;
  sysopen(my $file, $path, 0x801) or return refused();
  defined syswrite($file, $text // '1') or return refused();
  return "allowed $path";
}

sub get {
  my ($path) = @_;
  sysopen(my $file, $path, 0x800) or return refused();
  my $count = sysread $file, my $text, 64;
  return defined $count ? $count ? 'allowed ' . unpack('H*', $text) : 'refused empty' : refused();
}

sub open_socket {
  my ($family, $type, $protocol) = @_;
  return socket(my $socket, $family, $type, $protocol) ? "allowed $family" : refused();
}

sub reach {
  my ($address, $port) = @_;
  my $is_new = $address =~ /:/;
  socket(my $socket, $is_new ? 10 : 2, 1, 6) or return refused();
  my $to = $is_new ? pack('S n N H32 N', 10, $port, 0, full_address($address), 0) : pack('S n C4 x8', 2, $port, split /\./, $address);
  connect($socket, $to) or return refused();
  return "allowed $address";
}

sub full_address {
  my ($left, $right) = split /::/, $_[0], 2;
  my @left = split /:/, $left;
  my @right = split /:/, $right // '';
  return join '', map { sprintf '%04x', hex } @left, (0) x (8 - @left - @right), @right;
}

# Sends a netlink message that asks for an acknowledgement.
sub netlink {
  my ($protocol, $type, $body) = @_;
  socket(my $socket, 16, 3, $protocol) or return refused();
  defined syswrite($socket, pack('L S S L L a*', 16 + length $body, $type, 5 | 0x400, 1, 0, $body)) or return refused();
  sysread($socket, my $answer, 4096) or return refused();
  my $code = -unpack 'x16 l', $answer;
  return $code ? "refused $code" : 'allowed';
}

sub option {
  my ($level, $name) = @_;
  socket(my $socket, 2, 2, 17) or return refused();
  return setsockopt($socket, $level, $name, pack 'l', 1) ? 'allowed' : refused();
}

# The paths in a directory. An image need not have the module that glob uses.
sub entries {
  my ($directory) = @_;
  opendir(my $list, $directory) or return ();
  return map { "$directory/$_" } grep { !/^\.\.?$/ } readdir $list;
}

sub processes { return grep { m{/\d+$} } entries('/proc') }

sub groups { return map { ($_, entries($_)) } '/sys/fs/cgroup', '/proc/1/root/sys/fs/cgroup' }

sub copied {
  my ($from, $to) = @_;
  local $/;
  open(my $in, '<', $from) or die "$from: $!";
  open(my $out, '>', $to) or die "$to: $!";
  print $out scalar <$in>;
  close $out or die "$to: $!";
  return $to;
}

sub unshare { return sys('unshare', $_[0]) }

# Counts how often something succeeds, until it fails. More than the most that a box may get is an escape.
sub bounded {
  my ($most, $work) = @_;
  my $count = 0;
  $count++ while $count <= $most && $work->($count);
  return $count <= $most ? "bounded $count" : "allowed more than $most";
}

sub sleep_on {
  alarm 0;
  sleep 60;
  exit 0;
}

# Writes parts of 64 MB. The program is the largest of the box, so it is the one to end if memory is short.
sub fill {
  my ($path, $most) = @_;
  my $bytes = 64 << 20;
  my $part = 'x' x $bytes;
  open(my $file, '>', $path) or return refused();
  unlink $path;
  return bounded($most, sub { defined syswrite $file, $part });
}

# The address of the host's end of the first interface.
sub gateway {
  open(my $routes, '<', '/proc/net/route') or die "routes: $!";
  my ($gateway) = map { (split)[2] } grep { (split)[1] eq '00000000' } <$routes>;
  return pack 'L', hex $gateway;
}

# All but the last two bytes of addresses in the private network, of which none is in use. Undef without such a network.
sub neighbours {
  open(my $addresses, '<', '/proc/net/if_inet6') or return undef;
  my ($own) = map { /^(fdaa\w+) .* eth1$/ ? $1 : () } <$addresses>;
  return defined $own ? pack 'H20 n2', $own, 0xfff0, 0 : undef;
}

my %datagrams;

# Sends a datagram to an address in binary form.
sub send_to {
  my ($address, $port) = @_;
  my $family = length $address == 4 ? 2 : 10;
  $datagrams{$family} //= do { socket(my $socket, $family, 2, 17) or die "socket: $!"; $socket };
  my $to = $family == 2 ? pack('S n a4 x8', 2, $port, $address) : pack('S n N a16 N', 10, $port, 0, $address, 0);
  return defined send $datagrams{$family}, 'x', 0, $to;
}
