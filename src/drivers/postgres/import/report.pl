# Reads what pg_dump or pg_restore --verbose prints and prints what matters: how many tables are finished, the table that
# was started last, and errors. Exits with 1 at the first error, which also ends the program that it reads from.
use strict;
$| = 1;
my ($is_restore) = $ARGV[0] eq 'restore';
my ($finished, $started, $ignored, $lines_left, $entry) = (0, 0, 0, -1, undef);
while (defined(my $line = <STDIN>)) {
  if ($lines_left >= 0) {
    print $line if $line !~ /^pg_\w+: (?!detail|hint)/;
    exit 1 if --$lines_left < 0;
  } elsif ($line =~ /^pg_\w+: (?:dumping contents of|processing data for) table "(.*)"$/) {
    print 'started ' . ++$started . " $1\n";
  } elsif ($line =~ /^pg_\w+: finished item \d+ TABLE DATA /) {
    print 'finished ' . ++$finished . "\n";
  } elsif ($line =~ /^pg_restore: from TOC entry \d+; \d+ \d+ (.*)$/) {
    $entry = $1;
  } elsif ($line =~ /error: .*unrecognized configuration parameter "transaction_timeout"/) {
    $ignored++;
  } elsif ($line =~ /error: /) {
    print defined $entry ? "$entry: $line" : $line;
    $lines_left = $is_restore ? 3 : 6;
  } elsif ($line =~ /warning: errors ignored on restore: (\d+)/) {
    print $line and exit 1 if $1 > $ignored;
  } elsif ($line =~ /^pg_\w+: warning: /) {
    print $line;
  }
}
exit($lines_left >= 0 ? 1 : 0);
