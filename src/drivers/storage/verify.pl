# Compares a copy of a file or directory with its original: types, owners, modes, times, link targets, device numbers and
# contents. Holes are skipped where both files have them. Exits with 1 and prints the first difference.
# Usage: perl verify.pl <original> <copy>
use strict;
use warnings;
use Fcntl qw(:mode);

my ($seek_set, $seek_data) = (0, 3); # Fcntl lacks the second
my $chunk_bytes = 1 << 20;

my ($original, $copy) = @ARGV;
compare($original, $copy);

sub compare {
  my ($from, $to) = @_;
  my @from = lstat $from or die "$from: $!\n";
  my @to = lstat $to or differ($to, 'is missing');
  my $type = S_IFMT($from[2]);
  differ($to, 'has another type') if $type != S_IFMT($to[2]);
  differ($to, 'has another owner') if $from[4] != $to[4] || $from[5] != $to[5];
  if ($type == S_IFLNK) {
    differ($to, 'has another target') if readlink $from ne readlink $to;
    return;
  }
  differ($to, 'has another mode') if $from[2] != $to[2];
  differ($to, 'has another modification time') if $from[9] != $to[9];
  differ($to, 'has another device number') if ($type == S_IFCHR || $type == S_IFBLK) && $from[6] != $to[6];
  compare_content($from, $to, $from[7], $to[7]) if $type == S_IFREG;
  compare_entries($from, $to) if $type == S_IFDIR;
}

sub compare_entries {
  my ($from, $to) = @_;
  my @names = entries($from);
  differ($to, 'has other entries') if join("\0", @names) ne join "\0", entries($to);
  compare("$from/$_", "$to/$_") for @names;
}

sub entries {
  my ($directory) = @_;
  opendir(my $handle, $directory) or die "$directory: $!\n";
  my @names = sort grep { $_ ne '.' && $_ ne '..' } readdir $handle;
  closedir $handle;
  return @names;
}

sub compare_content {
  my ($from, $to, $size, $copied) = @_;
  differ($to, 'has another size') if $size != $copied;
  open(my $in, '<:raw', $from) or die "$from: $!\n";
  open(my $out, '<:raw', $to) or die "$to: $!\n";
  for (my $at = next_data($in, $out, 0, $size); $at < $size; $at = next_data($in, $out, $at, $size)) {
    my ($one, $other);
    for ([$in, \$one, $from], [$out, \$other, $to]) {
      my ($handle, $buffer, $path) = @$_;
      sysseek $handle, $at, $seek_set or die "$path: $!\n";
      defined sysread $handle, $$buffer, $chunk_bytes or die "$path: $!\n";
    }
    differ($to, 'has another content') if $one ne $other || $one eq '';
    $at += length $one;
  }
  close $in;
  close $out;
}

# Returns the next position at which one of the files has data, or their size.
sub next_data {
  my ($in, $out, $at, $size) = @_;
  my @next = sort { $a <=> $b } map { data_position($_, $at, $size) } $in, $out;
  return $next[0];
}

sub data_position {
  my ($handle, $at, $size) = @_;
  return $size if $at >= $size;
  my $found = sysseek $handle, $at, $seek_data;
  return $found + 0 if $found;
  return $!{ENXIO} ? $size : $at;
}

sub differ {
  my ($path, $problem) = @_;
  die "the copy $path $problem\n";
}
