# Marks directories of an overlay layer as opaque, so that they hide the layers below.
# Usage: perl base.pl <architecture> <attribute> <directory>...
use strict;

our $machine;
require($0 =~ s{[^/]*$}{}r . 'lib.pl');

($machine, my $attribute, my @directories) = @ARGV;
for my $directory (@directories) {
  my ($path, $name, $value) = ("$directory\0", "$attribute\0", 'y');
  call('setxattr', $path, $name, $value, 1, 0);
}
