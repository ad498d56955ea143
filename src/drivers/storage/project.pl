# Reads or sets the project id of files, by which XFS and ext4 count and limit what a directory holds.
# Setting one other than 0 also makes directories pass it on to new files. Links are not followed, and nothing but regular files and
# directories is opened. A directory is marked after its entries, so that an interrupted run is repeated.
# Usage: perl project.pl get <directory>
#        perl project.pl set <id> <directory>...
use strict;
use warnings;
use Fcntl qw(:mode O_RDONLY O_NOFOLLOW O_NONBLOCK);

# The numbers are the same on all architectures that Berth runs on. The structure has five 32-bit numbers (flags, extent
# size, extents, project id, extent size for copy on write) and 8 reserved bytes.
my ($get_attributes, $set_attributes) = (0x801c581f, 0x401c5820);
my $inherit = 0x200;

my ($command, @words) = @ARGV;
if ($command eq 'get') {
  my (undef, undef, undef, $project) = unpack 'L5', attributes(open_file($words[0]), $words[0]);
  print "$project\n";
} else {
  my $project = shift @words;
  set_tree($project, $_) for @words;
}

sub open_file {
  my ($path) = @_;
  sysopen(my $file, $path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK) or die "$path: $!\n";
  return $file;
}

sub attributes {
  my ($file, $path) = @_;
  my $buffer = "\0" x 28;
  ioctl $file, $get_attributes, $buffer or die "$path: read the project: $!\n";
  return $buffer;
}

sub set_tree {
  my ($project, $path) = @_;
  my $mode = (lstat $path)[2] // die "$path: $!\n";
  return if !S_ISREG($mode) && !S_ISDIR($mode);
  if (S_ISDIR($mode)) {
    opendir(my $entries, $path) or die "$path: $!\n";
    my @names = grep { $_ ne '.' && $_ ne '..' } readdir $entries;
    closedir $entries;
    set_tree($project, "$path/$_") for @names;
  }
  my $file = open_file($path);
  my @values = unpack 'L5 a8', attributes($file, $path);
  # Nothing of another project could be renamed into a directory that passes on project 0, which means none.
  $values[0] = $project && S_ISDIR($mode) ? $values[0] | $inherit : $values[0] & ~$inherit;
  $values[3] = $project;
  ioctl $file, $set_attributes, pack('L5 a8', @values) or die "$path: set the project: $!\n";
}
