# How a program of ours does its own work inside a box, instead of starting one that is installed there. It stays outside
# the box's processes, which therefore cannot see it, and can do no more than they can.
use strict;

our $machine;

# A descriptor that can be read from when the box has ended, for those that stay long. We hold its filesystem.
our $end_of_box;

# The same words as those of a command that enters.
sub enter_to_help {
  my %request = take_request();
  $machine = $request{machine}[0];
  %ENV = ();
  if ($request{way}[0] ne 'none') {
    my $first = first_process($request{service}[0], $request{uid}[0], $request{first}[0]);
    $end_of_box = $first ? attempt('pidfd_open', $first, 0) : -1;
    exit 75 if $end_of_box < 0;
  }
  exit 75 if !enter_by_request(%request);
  chdir '/' or exit 75;
}

1;
