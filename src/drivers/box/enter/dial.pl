# One connection out of a box, dialled inside it: the bytes of standard input go there and what comes back goes to
# standard output. The words are the port and what to try, in order: `v4:` or `v6:` and an address in hexadecimal digits,
# or `name:` and a name, which the resolver inside knows or does not.
use strict;

our (%errno, %open, $end_of_box);

BEGIN {
  my $here = $0 =~ s{[^/]*$}{}r;
  require "$here$_" for qw(../lib.pl help.pl ../file/lib.pl);
}

my ($port, $seconds, @targets) = take_record();
exit 1 if !@targets;
enter_to_help();
prepare_file_calls();
$SIG{PIPE} = 'IGNORE';
$SIG{ALRM} = sub { refuse(110, '') }; # ETIMEDOUT
alarm $seconds;
my $why = 113; # EHOSTUNREACH
for my $target (map { resolved($_) } @targets) {
  my $socket = dial($target) or next;
  alarm 0;
  record('connected');
  send_now();
  pump($socket);
  exit 0;
}
refuse($why, '');

sub resolved {
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
  $why = $! + 0;
  return undef;
}

# Each way waits for itself only: who does not read holds up nobody who writes.
sub pump {
  my ($socket) = @_;
  fcntl $_, 4, $open{no_wait} for \*STDIN, \*STDOUT, $socket;
  my @ways = ({ from => \*STDIN, to => $socket, held => '' }, { from => $socket, to => \*STDOUT, held => '' });
  while (grep { !$_->{over} } @ways) {
    my ($read, $write) = ('', '');
    for (grep { !$_->{over} } @ways) {
      if ($_->{held} eq '') { vec($read, fileno $_->{from}, 1) = 1 } else { vec($write, fileno $_->{to}, 1) = 1 }
    }
    vec($read, $end_of_box, 1) = 1 if defined $end_of_box;
    next if select($read, $write, undef, undef) < 0;
    return if defined $end_of_box && vec($read, $end_of_box, 1);
    for (grep { !$_->{over} } @ways) {
      take_in($_) if $_->{held} eq '' && vec($read, fileno $_->{from}, 1);
      give_out($_) if $_->{held} ne '';
    }
    return if $ways[1]{over};
  }
}

sub take_in {
  my ($way) = @_;
  my $got = sysread $way->{from}, $way->{held}, 65536;
  return if $got || !defined $got && ($! == $errno{EAGAIN} || $! == $errno{EINTR});
  $way->{held} = '';
  $way->{over} = 1;
  shutdown $way->{to}, 1;
}

sub give_out {
  my ($way) = @_;
  my $done = syswrite $way->{to}, $way->{held};
  return substr $way->{held}, 0, $done, '' if defined $done;
  $way->{over} = 1 if $! != $errno{EAGAIN} && $! != $errno{EINTR};
}
