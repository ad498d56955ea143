# Reads a tar from standard input, entry by entry, for unpack.pl. It knows the formats v7, ustar, GNU and pax.
use strict;
use Errno;

# Exit codes: the tar is damaged, too large or of an unsupported kind; or the host cannot unpack it.
our ($damaged, $too_large, $not_supported, $cannot) = (20, 21, 22, 23);

my $block = 512;
my $chunk = 262_144;
my $max_header_bytes = 1 << 20; # of one record of extended headers
my $max_id = 65_535;            # a box has 65,536 user ids
my $overflow_id = 65_534;       # owns files whose owner does not exist in a box
my ($buffer, $is_at_end) = ('', 0);

# Ends the program with a reason that is shown to the user.
sub refuse {
  my ($code, $reason) = @_;
  print STDERR "$reason\n";
  exit $code;
}

# Makes a name from the tar safe to print.
sub printable {
  my ($name) = @_;
  $name = substr($name, 0, 200) . '...' if length $name > 200;
  return $name =~ s/[^ -~]/?/gr;
}

# Returns the next entry, or undef at the end of the tar.
sub next_entry {
  my ($long_name, $long_link, %extended);
  while (1) {
    fill($block);
    return undef if $buffer eq '';
    my $header = take($block);
    return undef if $header !~ /[^\0]/;
    my ($name, $mode, $uid, $gid, $size, $mtime, $sum, $type, $link, $magic, $prefix) =
      unpack 'Z100 a8 a8 a8 a12 a12 a8 a1 Z100 a8 x64 x16 Z155', $header;
    check_sum($header, $sum);
    $size = read_number($size);
    if ($type eq 'x') { %extended = (%extended, read_extended(take_text($size))); next }
    if ($type eq 'g') { take_text($size); next }
    if ($type eq 'L') { $long_name = take_text($size) =~ s/\0.*//sr; next }
    if ($type eq 'K') { $long_link = take_text($size) =~ s/\0.*//sr; next }
    $name = "$prefix/$name" if $magic =~ /^ustar\0/ && $prefix ne '';
    my %entry = (
      type => $type,
      name => $extended{path} // $long_name // $name,
      link => $extended{linkpath} // $long_link // $link,
      size => checked_size($extended{size} // $size),
      mode => read_number($mode) & 07777,
      uid => box_id($extended{uid} // read_number($uid)),
      gid => box_id($extended{gid} // read_number($gid)),
      mtime => whole_seconds($extended{mtime} // read_time($mtime)),
      attributes => $extended{attributes} // {},
    );
    refuse($not_supported, 'the tar has a sparse file, ' . printable($entry{name})) if $type eq 'S' || $extended{sparse};
    return \%entry;
  }
}

# Skips the data of an entry.
sub skip_data {
  my ($size) = @_;
  my $left = $size + padding($size);
  while ($left > 0) {
    my $part = $left < $chunk ? $left : $chunk;
    take($part);
    $left -= $part;
  }
}

# Copies the data of an entry to a file. Returns false and sets $! when writing fails.
sub copy_data {
  my ($file, $size) = @_;
  my $left = $size;
  while ($left > 0) {
    fill(1);
    refuse($damaged, 'the tar ends in the middle of an entry') if $buffer eq '';
    my $part = length $buffer < $left ? length $buffer : $left;
    my $wrote = syswrite $file, $buffer, $part;
    return 0 if !defined $wrote;
    substr $buffer, 0, $wrote, '';
    $left -= $wrote;
  }
  take(padding($size));
  return 1;
}

# Reads what follows the end of the tar. It counts for the digest, which the sender computes, and for nothing else.
sub drain_input {
  while (!$is_at_end) { $buffer = ''; fill(1) }
}

# Fills the buffer with at least so many bytes, or fewer at the end of the input.
sub fill {
  my ($wanted) = @_;
  while (length $buffer < $wanted && !$is_at_end) {
    my $read = sysread STDIN, $buffer, $chunk, length $buffer;
    next if !defined $read && $!{EINTR};
    refuse($cannot, "cannot read: $!") if !defined $read;
    $is_at_end = 1 if !$read;
  }
}

sub take {
  my ($count) = @_;
  fill($count);
  refuse($damaged, 'the tar ends in the middle of an entry') if length $buffer < $count;
  return substr $buffer, 0, $count, '';
}

sub padding {
  my ($size) = @_;
  return -$size % $block;
}

sub take_text {
  my ($size) = @_;
  refuse($damaged, 'the tar has a header that is too long') if $size > $max_header_bytes;
  my $text = take($size);
  take(padding($size));
  return $text;
}

# Numbers are octal, or binary when the first bit is set.
sub read_number {
  my ($field) = @_;
  my $first = ord $field;
  if ($first & 0x80) {
    refuse($damaged, 'the tar has a negative number') if $first & 0x40;
    my $value = $first & 0x3f;
    $value = $value * 256 + $_ for unpack 'C*', substr $field, 1;
    refuse($damaged, 'the tar has a number that is too large') if $value >= 2**53;
    return $value;
  }
  my ($digits) = $field =~ /^[ \0]*([0-7]*)[ \0]*/;
  return $digits eq '' ? 0 : oct $digits;
}

sub check_sum {
  my ($header, $sum) = @_;
  substr $header, 148, 8, ' ' x 8;
  my $wanted = read_number($sum);
  return if unpack('%32C*', $header) == $wanted;
  return if unpack('%32c*', $header) == $wanted; # some old programs summed signed bytes
  refuse($damaged, 'not a valid tar archive: a header has a wrong checksum');
}

# Reads the records of a pax header: "<length> <key>=<value>\n".
sub read_extended {
  my ($text) = @_;
  my %found;
  while ($text ne '') {
    my ($length) = $text =~ /^(\d{1,7}) / or refuse($damaged, 'the tar has an extended header that cannot be read');
    my $start = length($length) + 1;
    refuse($damaged, 'the tar has an extended header that cannot be read')
      if $length < $start + 2 || $length > length $text || substr($text, $length - 1, 1) ne "\n";
    my ($key, $value) = split /=/, substr($text, $start, $length - $start - 1), 2;
    substr $text, 0, $length, '';
    refuse($damaged, 'the tar has an extended header that cannot be read') if !defined $value;
    if ($key =~ /^SCHILY\.xattr\.(.+)/s) { $found{attributes}{$1} = $value }
    elsif ($key =~ /^GNU\.sparse\./) { $found{sparse} = 1 }
    elsif ($key =~ /^(?:path|linkpath)$/ && $value =~ /\0/) { refuse($damaged, 'the tar has a name with a zero byte') }
    else { $found{$key} = $value }
  }
  return %found;
}

sub checked_size {
  my ($text) = @_;
  refuse($damaged, 'the tar has a size that is not a number') if $text !~ /^\d{1,15}$/;
  return $text + 0;
}

# Maps ids that no box has to the overflow id.
sub box_id {
  my ($id) = @_;
  return $id =~ /^\d{1,5}$/ && $id <= $max_id ? $id + 0 : $overflow_id;
}

sub read_time {
  my ($field) = @_;
  return ord($field) & 0x80 ? 0 : read_number($field);
}

sub whole_seconds {
  my ($text) = @_;
  return $text =~ /^(\d{1,10})(?:\.\d*)?$/ ? $1 + 0 : 0;
}

1;
