# Lets a platform program do its work inside a box. It is not in the pid namespace, so processes of the box cannot see it,
# and it has no more privileges than they have.
use strict;

our $machine;

# Helpers that run for long must end when this becomes readable; see watch_box.
our $end_of_box;

# Enters the box of the request in the environment, or exits with 75.
sub enter_as_helper {
  my %request = take_request();
  $machine = $request{machine}[0];
  %ENV = ();
  if ($request{way}[0] ne 'none') {
    $end_of_box = watch_box(%request);
    exit 75 if $end_of_box < 0;
  }
  exit 75 if !enter_by_request(%request);
  chdir '/' or exit 75;
}

1;
