# Copies a volume while nobody can write to it:
#   volume-copy.pl <source> <place> <name>
# The source is a disk in a file or a directory. The copy is made in <place>/.new~copy and renamed to <place>/<name>.
use strict;
use Errno;

require($0 =~ s{[^/]*$}{}r . 'lib.pl');

my ($source, $place, $name) = @ARGV;
my ($freeze, $thaw) = (0xC0045877, 0xC0045878);
my ($frozen, $watch);

exit 0 if -e "$place/$name";
-d $place or refuse("there is no $place");
my $fresh = "$place/.new~copy";
system('rm', '-rf', '--', $fresh);
# Told to end, it lets go first. Killed, it leaves that to the process that waits for it to be gone.
$SIG{$_} = sub { refuse('it was told to end') } for qw(TERM INT HUP);
hold_still() if -f $source;
my @sparse = -f $source ? '--sparse=always' : ();
system('cp', '-a', '--reflink=auto', @sparse, '--', $source, $fresh) == 0 or refuse('the copy failed');
let_go();
system('sync', '-f', $place) == 0 or refuse('the copy could not be written to the disk');
rename $fresh, "$place/$name" or refuse("rename: $!");

sub refuse {
  my ($reason) = @_;
  let_go();
  system('rm', '-rf', '--', $fresh) if defined $fresh;
  print "$reason\n";
  exit 31;
}

# A file that no device shows is written by nobody.
sub hold_still {
  my $device = find_loop($source) or return;
  my $mount = open_mounted($device);
  if ($mount) {
    watch_over($mount);
    freeze($mount);
    $frozen = $mount;
    return;
  }
  # Let go since we looked.
  refuse('it is in use, and could not be held still') if find_loop($source);
}

# Another copy may hold it still already.
sub freeze {
  my ($mount) = @_;
  for (1 .. 6000) {
    return if ioctl($mount, $freeze, 0);
    last if !$!{EBUSY};
    select undef, undef, undef, 0.1;
  }
  refuse("it could not be held still: $!");
}

# Thaws when this process is gone without having done so.
sub watch_over {
  my ($mount) = @_;
  pipe(my $out, my $in) or refuse("pipe: $!");
  my $child = fork // refuse("fork: $!");
  if ($child) {
    close $out;
    $watch = $in; # the programs that we start do not inherit it
    return;
  }
  $SIG{$_} = 'IGNORE' for qw(TERM INT HUP);
  setpgrp;
  close $in;
  ioctl($mount, $thaw, 0) if !sysread $out, my $word, 1;
  exit 0;
}

sub let_go {
  ioctl($frozen, $thaw, 0) if $frozen;
  syswrite $watch, 'x' if $watch;
  ($frozen, $watch) = ();
}
