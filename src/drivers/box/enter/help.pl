# Lets a platform program do its work inside a box. It is not in the pid namespace, so processes of the box cannot see it,
# and it has no more privileges than they have.
use strict;

our $machine;

# A pidfd that becomes readable when the box ends. Helpers that run for long must end then, because they hold its mounts.
our $end_of_box;

# Enters the box of the request in the environment, or exits with 75.
sub enter_as_helper {
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
