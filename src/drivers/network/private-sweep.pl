# Removes the bridges of private networks that have no machine.
# Usage: private-sweep.pl <prefix of bridge names> <lock file>
use strict;

require($0 =~ s{[^/]*$}{}r . $_) for '../box/lib.pl', 'netlink.pl', 'private.pl';

my ($prefix, $file) = @ARGV;
open(my $lock, '>', $file) or die "$file: $!\n";
flock($lock, 2) or die "lock: $!\n";
for my $bridge (list_links($prefix)) {
  opendir(my $ports, "/sys/class/net/$bridge/brif") or next;
  remove_link($bridge) if !grep { !/^\./ } readdir $ports;
}
