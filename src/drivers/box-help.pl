# How a program of ours does its own work inside a box, instead of starting one that is installed there. It stays outside
# the box's processes, which therefore cannot see it, and can do no more than they can.
use strict;

our ($machine, @capabilities);

# A descriptor that can be read from when the box has ended, for those that stay long. We hold its filesystem.
our $end_of_box;

# The same words as those of a command that enters.
sub enter_to_help {
  my %request = read_entrance();
  $machine = $request{machine}[0];
  my ($way, $uid) = ($request{way}[0], $request{uid}[0]);
  my $filter = read_file($request{filter}[0]) // '';
  %ENV = ();
  for my $group (@{$request{cgroup}}) { write_file($group, "0\n") }
  if ($way ne 'none') {
    my $first = first_process($request{service}[0], $uid);
    $end_of_box = $first ? attempt('pidfd_open', $first, 0) : -1;
    exit 75 if $filter eq '' || $end_of_box < 0 || !enter_box($request{service}[0], $uid);
    cut_capabilities();
    become(0);
    drop_capabilities();
  } elsif ($uid != $>) {
    become($uid);
  }
  chdir '/' or exit 75;
  forbid_new_privileges();
  apply_filter($filter) if $way ne 'none';
  # Whatever Perl would load from now on is the box's.
  @INC = ();
}

sub read_entrance {
  my $text = '';
  for (my $part = 0; defined(my $more = $ENV{"BERTH_ENTER_$part"}); $part++) { $text .= $more }
  $text =~ s/%(25|00)/$1 eq '00' ? "\0" : '%'/ge;
  my %request;
  my @words = split /\0/, $text, -1;
  while (@words) {
    my ($key, $count) = (shift @words, shift @words);
    $request{$key} = [splice @words, 0, $count];
  }
  return %request;
}

# Those of this process itself; nothing is executed that would take over the smaller set.
sub drop_capabilities {
  my ($header, $bits) = (pack('L l', 0x20080522, 0), 0);
  $bits |= 1 << $_ for @capabilities;
  my ($low, $high) = ($bits & 0xffffffff, $bits >> 32);
  my $sets = pack 'L6', $low, $low, 0, $high, $high, 0;
  exit 75 if syscall($machine eq 'arm64' ? 91 : 126, $header, $sets) < 0;
}

1;
