# Who has the disk in a file mounted. Boxes mount it in namespaces of their own, so that the list of mounts of the host
# does not tell.
use strict;
use Fcntl;

# The loop device that shows the file as a disk, as major:minor.
sub find_loop {
  my ($source) = @_;
  for my $file (glob '/sys/block/loop*/loop/backing_file') {
    next if (read_line($file) // '') ne $source;
    return read_line($file =~ s{loop/backing_file$}{dev}r);
  }
  return undef;
}

# The place where it is mounted, whoever has it.
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

# Whoever is inside may have put a link in the way, and nothing else may be touched.
sub open_mount {
  my ($process, $device) = @_;
  open(my $list, '<', "$process/mountinfo") or return;
  my ($line) = grep { (split / /)[2] eq $device } <$list>;
  return if !defined $line;
  my $path = (split / /, $line)[4] =~ s/\\(\d{3})/chr oct $1/egr;
  sysopen(my $mount, "$process/root$path", O_RDONLY | O_DIRECTORY | O_NONBLOCK) or return;
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
