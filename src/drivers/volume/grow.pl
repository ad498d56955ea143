# Grows a disk image and its filesystem, even while a machine has it mounted.
# Usage: grow.pl <image> <bytes>
use strict;
use Fcntl qw(:flock);

require($0 =~ s{[^/]*$}{}r . 'lib.pl');

my ($image, $bytes) = @ARGV;
my $resize = 0x40086610; # EXT4_IOC_RESIZE_FS
$^F = 255; # child programs inherit the lock, in case this process is killed

# Machines mount the image under the same lock. The kernel releases its loop device a moment after a machine has stopped.
for (1 .. 150) {
  open(my $lock, '<', $image) or die "$image: $!\n";
  flock($lock, LOCK_EX) or die "lock $image: $!\n";
  exit 0 if grow();
  close $lock;
  select undef, undef, undef, 0.02;
}
die "the image has a loop device but is not mounted\n";

sub grow {
  my $device = find_loop($image);
  return grow_unmounted() if !defined $device;
  my $mount = open_mounted($device) or return 0;
  truncate($image, $bytes) or die "truncate: $!\n";
  run(0, 'losetup', '-c', '/dev/' . (readlink("/sys/dev/block/$device") =~ s{.*/}{}r));
  my $blocks = $bytes / (stat $mount)[11];
  ioctl($mount, $resize, pack('Q', $blocks)) or die "grow the filesystem: $!\n";
  return 1;
}

sub grow_unmounted {
  run(1, 'e2fsck', '-f', '-p', $image); # 1: errors were corrected
  truncate($image, $bytes) or die "truncate: $!\n";
  run(0, 'resize2fs', $image);
  return 1;
}

# Runs a command without its output; exit codes up to the given one count as success.
sub run {
  my ($max_code, @command) = @_;
  open(my $output, '-|', @command) or die "$command[0]: $!\n";
  () = <$output>;
  close $output;
  die "$command[0] exited with $?\n" if $? > $max_code << 8 || $? & 127;
}
