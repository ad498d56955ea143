# Finds where a disk image is mounted. Boxes mount it in their own mount namespaces, so the host's mount table does not
# list it.
use strict;
use Fcntl;

require(__FILE__ =~ s{[^/]*$}{}r . '../host/untrusted.pl');

# Returns the loop device of an image as major:minor.
sub find_loop {
  my ($source) = @_;
  for my $file (glob '/sys/block/loop*/loop/backing_file') {
    next if (read_line($file) // '') ne $source;
    return read_line($file =~ s{loop/backing_file$}{dev}r);
  }
  return undef;
}

# Opens the mount point of a device in whichever namespace it is mounted.
sub open_mounted {
  my ($device) = @_;
  my %seen;
  for my $process (glob '/proc/[0-9]*') {
    my $namespace = readlink "$process/ns/mnt" // next;
    next if $seen{$namespace}++;
    my $mount = open_mount($process, $device);
    return $mount if $mount;
  }
  return undef;
}

# Follows no links: processes inside could have replaced a part of the path by one.
sub open_mount {
  my ($process, $device) = @_;
  open(my $list, '<', "$process/mountinfo") or return;
  my ($line) = grep { (split / /)[2] eq $device } <$list>;
  return if !defined $line;
  my $path = (split / /, $line)[4] =~ s/\\(\d{3})/chr oct $1/egr;
  my $mount = open_untrusted("$process/root", $path, O_RDONLY | O_DIRECTORY | O_NONBLOCK) or return;
  my $number = (stat $mount)[0];
  my ($major, $minor) = (($number >> 8) & 0xfff, ($number & 0xff) | (($number >> 12) & 0xfff00));
  return "$major:$minor" eq $device ? $mount : undef;
}

sub read_line {
  my ($file) = @_;
  open(my $in, '<', $file) or return undef;
  my $line = <$in> // '';
  chomp $line;
  return $line;
}

1;
