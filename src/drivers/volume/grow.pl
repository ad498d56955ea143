# Grows the disk in a file with the filesystem on it, also while a machine has it mounted:
#   volume-grow.pl <file> <bytes>
use strict;
use Fcntl qw(:flock);

require($0 =~ s{[^/]*$}{}r . 'lib.pl');

my ($source, $bytes) = @ARGV;
my $resize = 0x40086610; # EXT4_IOC_RESIZE_FS: to so many blocks
$^F = 255; # what we run keeps the lock when we are gone

# Machines mount it under the same lock. One that stops lets go of the disk a moment later.
for (1 .. 150) {
  open(my $lock, '<', $source) or die "$source: $!\n";
  flock($lock, LOCK_EX) or die "lock $source: $!\n";
  exit 0 if grow();
  close $lock;
  select undef, undef, undef, 0.02;
}
die "it is in use, and mounted nowhere\n";

sub grow {
  my $device = find_loop($source);
  return grow_unused() if !defined $device;
  my $mount = open_mounted($device) or return 0;
  truncate($source, $bytes) or die "truncate: $!\n";
  run(0, 'losetup', '-c', '/dev/' . (readlink("/sys/dev/block/$device") =~ s{.*/}{}r));
  my $blocks = $bytes / (stat $mount)[11];
  ioctl($mount, $resize, pack('Q', $blocks)) or die "grow the filesystem: $!\n";
  return 1;
}

sub grow_unused {
  run(1, 'e2fsck', '-f', '-p', $source); # 1: something was mended
  truncate($source, $bytes) or die "truncate: $!\n";
  run(0, 'resize2fs', $source);
  return 1;
}

# What it prints is nothing to anybody.
sub run {
  my ($highest, @command) = @_;
  open(my $said, '-|', @command) or die "$command[0]: $!\n";
  () = <$said>;
  close $said;
  die "$command[0] ended with $?\n" if $? > $highest << 8 || $? & 127;
}
