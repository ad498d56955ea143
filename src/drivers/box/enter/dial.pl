# Makes one TCP connection inside a box and connects it to standard input and output. The request comes as a record on
# standard input: the port, the timeout in seconds, and the targets to try in order. A target is `v4:` or `v6:` and an address
# in hexadecimal digits, or `name:` and a host name for the resolver of the box.
# Usage: perl dial.pl, with the box to enter in the environment
use strict;

our (%errno, %open, $end_of_box);

BEGIN {
  my $here = $0 =~ s{[^/]*$}{}r;
  require "$here$_" for qw(../lib.pl help.pl ../file/lib.pl);
}

my ($port, $seconds, @targets) = read_record();
exit 1 if !@targets;
enter_as_helper();
prepare_file_calls();
$SIG{PIPE} = 'IGNORE';
$SIG{ALRM} = sub { refuse(110, '') }; # ETIMEDOUT
alarm $seconds;
my $error = 113; # EHOSTUNREACH
for my $target (map { resolve($_) } @targets) {
  my $socket = dial($target) or next;
  alarm 0;
  record('connected');
  flush_records();
  pump($socket);
  exit 0;
}
refuse($error, '');

sub resolve {
  my ($kind, $what) = split /:/, $_[0], 2;
  return [2, pack('S n a4 x8', 2, $port, pack 'H8', $what)] if $kind eq 'v4';
  return [10, pack('S n N a16 N', 10, $port, 0, pack('H32', $what), 0)] if $kind eq 'v6';
  my (undef, undef, undef, undef, @addresses) = gethostbyname $what;
  return map { [2, pack 'S n a4 x8', 2, $port, $_] } @addresses;
}

sub dial {
  my ($family, $address) = @{$_[0]};
  if (socket(my $socket, $family, 1, 6)) {
    return $socket if connect $socket, $address;
  }
  $error = $! + 0;
  return undef;
}

# Copies in both directions independently, so that one that is blocked does not block the other.
sub pump {
  my ($socket) = @_;
  fcntl $_, 4, $open{no_wait} for \*STDIN, \*STDOUT, $socket;
  my @directions = ({ from => \*STDIN, to => $socket, pending => '' }, { from => $socket, to => \*STDOUT, pending => '' });
  while (grep { !$_->{done} } @directions) {
    my ($read, $write) = ('', '');
    for (grep { !$_->{done} } @directions) {
      if ($_->{pending} eq '') { vec($read, fileno $_->{from}, 1) = 1 } else { vec($write, fileno $_->{to}, 1) = 1 }
    }
    vec($read, $end_of_box, 1) = 1 if defined $end_of_box;
    next if select($read, $write, undef, undef) < 0;
    return if defined $end_of_box && vec($read, $end_of_box, 1);
    for (grep { !$_->{done} } @directions) {
      read_from($_) if $_->{pending} eq '' && vec($read, fileno $_->{from}, 1);
      write_to($_) if $_->{pending} ne '';
    }
    return if $directions[1]{done};
  }
}

sub read_from {
  my ($direction) = @_;
  my $got = sysread $direction->{from}, $direction->{pending}, 65536;
  return if $got || !defined $got && ($! == $errno{EAGAIN} || $! == $errno{EINTR});
  $direction->{pending} = '';
  $direction->{done} = 1;
  shutdown $direction->{to}, 1;
}

sub write_to {
  my ($direction) = @_;
  my $done = syswrite $direction->{to}, $direction->{pending};
  return substr $direction->{pending}, 0, $done, '' if defined $done;
  $direction->{done} = 1 if $! != $errno{EAGAIN} && $! != $errno{EINTR};
}
