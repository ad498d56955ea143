# Unpacks a tar from standard input as one layer of an image:
#   image-unpack.pl <machine> <directory> <most files> <most bytes>
# It shuts itself into the directory first, so that no name and no link of the tar can lead out of it. Owners are kept
# when it runs as root. What deletes files of lower layers is written as overlayfs reads it. At the end it prints how
# many files and bytes there were. With a code from 20 on it ends when the tar is to blame, and says why.
use strict;
use Errno;

our $machine;
require($0 =~ s{[^/]*$}{}r . $_) for '../box/lib.pl', '../box/mount.pl';

my %numbers = (
  x64   => { mknodat => 259, lsetxattr => 189, utimensat => 280, fchownat => 260 },
  arm64 => { mknodat => 33, lsetxattr => 6, utimensat => 88, fchownat => 54 },
);
my ($damaged, $too_large, $not_supported, $cannot) = (20, 21, 22, 23);
my $block = 512;
my $most_header = 1 << 20; # of one record of extended headers
my $most_name = 4096;
my $most_kept = 1 << 29;    # of memory for what is remembered to the end
my $highest_id = 65_535;   # of the range of a box
my $nobody = 65_534;
my %usual_modes = (tmp => 01777, 'var/tmp' => 01777, root => 0700);

($machine, my $directory, my $most_files, my $most_bytes) = @ARGV;
my $number = $numbers{$machine} or refuse($cannot, "no system calls known for $machine");
my $is_root = $> == 0;
my ($files, $bytes, $kept) = (0, 0, 0);
my ($buffer, $ended) = ('', 0);
my (%made, %removed, %opaque, @times);

umask 0;
$SIG{PIPE} = 'DEFAULT';
binmode STDIN;
shut_in();
unpack_all();
remove_lower();
finish_times();
print "$files $bytes\n";

sub refuse {
  my ($code, $reason) = @_;
  print STDERR "$reason\n";
  exit $code;
}

# A name for people: of what was sent, only what is harmless to print.
sub shown {
  my ($name) = @_;
  $name = substr($name, 0, 200) . '...' if length $name > 200;
  return $name =~ s/[^ -~]/?/gr;
}

sub failed {
  my ($what, $name) = @_;
  my $reason = "$!";
  refuse($too_large, 'the disk is full') if $!{ENOSPC} || $!{EDQUOT};
  my $code = $!{EIO} || $!{EROFS} || $!{EPERM} || $!{EACCES} || $!{EOPNOTSUPP} || $!{ENOMEM} ? $cannot : $damaged;
  refuse($code, "cannot $what " . shown($name) . ": $reason");
}

sub shut_in {
  eval { enter_own_namespace(); 1 } or refuse($cannot, "user namespaces are not open here: $@") if !$is_root;
  chroot $directory or refuse($cannot, "chroot: $!");
  chdir '/' or refuse($cannot, "chdir: $!");
}

# Up to the wanted number of bytes lie in the buffer afterwards; fewer only at the end of the input.
sub fill {
  my ($wanted) = @_;
  while (length $buffer < $wanted && !$ended) {
    my $read = sysread STDIN, $buffer, 262_144, length $buffer;
    next if !defined $read && $!{EINTR};
    refuse($cannot, "cannot read: $!") if !defined $read;
    $ended = 1 if !$read;
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
  refuse($damaged, 'the tar has a header that is too long') if $size > $most_header;
  my $text = take($size);
  take(padding($size));
  return $text;
}

sub skip {
  my ($size) = @_;
  my $left = $size + padding($size);
  while ($left > 0) {
    my $part = $left < 262_144 ? $left : 262_144;
    take($part);
    $left -= $part;
  }
}

# Octal, or binary when the first bit is set.
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

sub unpack_all {
  my ($long_name, $long_link, %extended);
  while (1) {
    fill($block);
    last if $buffer eq '';
    my $header = take($block);
    last if $header !~ /[^\0]/;
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
      size => whole($extended{size} // $size),
      mode => read_number($mode) & 07777,
      uid => owner($extended{uid} // read_number($uid)),
      gid => owner($extended{gid} // read_number($gid)),
      mtime => time_of($extended{mtime} // read_time($mtime)),
      attributes => $extended{attributes} // {},
    );
    refuse($not_supported, 'the tar has a sparse file, ' . shown($entry{name})) if $type eq 'S' || $extended{sparse};
    ($long_name, $long_link, %extended) = ();
    unpack_entry(\%entry);
  }
  # Whatever follows the end belongs to the digest and to nothing else.
  while (!$ended) { $buffer = ''; fill(1) }
}

sub check_sum {
  my ($header, $sum) = @_;
  substr $header, 148, 8, ' ' x 8;
  my $wanted = read_number($sum);
  return if unpack('%32C*', $header) == $wanted;
  return if unpack('%32c*', $header) == $wanted; # signed, as some old programs summed
  refuse($damaged, 'the tar has a header whose sum is wrong, or it is no tar');
}

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

sub whole {
  my ($text) = @_;
  refuse($damaged, 'the tar has a size that is no number') if $text !~ /^\d{1,15}$/;
  return $text + 0;
}

# Those that no box has room for belong to nobody.
sub owner {
  my ($id) = @_;
  return $id =~ /^\d{1,5}$/ && $id <= $highest_id ? $id + 0 : $nobody;
}

sub read_time {
  my ($field) = @_;
  return ord($field) & 0x80 ? 0 : read_number($field);
}

sub time_of {
  my ($text) = @_;
  return $text =~ /^(\d{1,10})(?:\.\d*)?$/ ? $1 + 0 : 0;
}

sub unpack_entry {
  my ($entry) = @_;
  my $name = inner_name($entry->{name});
  my $type = $entry->{type};
  my $has_data = $type =~ /^[0\0007]$/ && $entry->{name} !~ m{/$};
  $type = '5' if $type =~ /^[0\0007]$/ && !$has_data; # how directories were written once
  refuse($too_large, "the image has more than $most_files files") if ++$files > $most_files;
  $bytes += $entry->{size} if $has_data;
  refuse($too_large, "the image has more than $most_bytes bytes") if $bytes > $most_bytes;
  my $is_note = $name =~ m{(?:^|/)\.wh\.\.wh\.(?!\.opq$)}; # of a filesystem of old
  if ($is_note || $name =~ m{^(?:(.*)/)?\.wh\.([^/]*)$}s) {
    my ($parent, $removed) = ($1 // '', $2);
    skip($entry->{size}) if $has_data;
    return $is_note ? undef : note_removal($parent, $removed);
  }
  if ($name eq '') { # the directory itself
    refuse($damaged, 'the tar has a root that is no directory') if $type ne '5';
    return set_all($entry, '.', 5);
  }
  # Devices are made by who runs the machine, never by an image.
  return if $type eq '3' || $type eq '4';
  make_parents($name);
  if ($has_data) { return write_file_of($entry, $name) }
  if ($type eq '5') { return make_directory($entry, $name) }
  make_room($name);
  if ($type eq '1') {
    my $target = inner_name($entry->{link});
    return if link "/$target", $name;
    my $place = 'the hard link ' . shown($name) . ' leads to ' . shown($target);
    refuse($damaged, "$place, which is not in its layer") if $!{ENOENT} || $!{ENOTDIR};
    refuse($damaged, "$place, which is a directory") if $!{EPERM};
    failed('link', $name);
  }
  if ($type eq '2') {
    symlink $entry->{link}, $name or failed('make the link', $name);
    return set_all($entry, $name, 2);
  }
  if ($type eq '6') {
    my $path = "$name\0";
    syscall($number->{mknodat}, -100, $path, 0010600, 0) == 0 or failed('make the pipe', $name);
    return set_all($entry, $name, 6);
  }
  refuse($not_supported, 'the tar has an entry of an unknown kind, ' . shown($name));
}

# Without anything that could lead elsewhere; the empty name is the directory itself.
sub inner_name {
  my ($name) = @_;
  refuse($damaged, 'the tar has a name that is too long, ' . shown($name)) if length $name > $most_name;
  return $name if $name !~ m{(?:^|/)(?:\.{0,2})(?:/|$)};
  my @parts = grep { $_ ne '' && $_ ne '.' } split m{/}, $name;
  refuse($damaged, 'the tar has a name that leads out of it, ' . shown($name)) if grep { $_ eq '..' } @parts;
  return join '/', @parts;
}

sub note_removal {
  my ($parent, $name) = @_;
  if ($name eq '.wh..opq') { $opaque{$parent} = 1 }
  elsif ($name eq '' || $name eq '.' || $name eq '..') { refuse($damaged, 'the tar deletes what has no name') }
  else { $removed{$parent eq '' ? $name : "$parent/$name"} = 1 }
  make_parents("$parent/x") if $parent ne '';
  remember($parent . $name);
}

sub remember {
  my ($name) = @_;
  $kept += 500 + length $name;
  refuse($too_large, 'the names in the image take too much memory') if $kept > $most_kept;
}

sub make_parents {
  my ($name) = @_;
  my $slash = rindex $name, '/';
  return if $slash < 0;
  my $parent = substr $name, 0, $slash;
  return if $made{$parent};
  if (!-d $parent) {
    make_parents($parent);
    # A link that leads nowhere stays what it is. What the tar does not describe is as it usually is.
    mkdir $parent, 0755 or failed('make the directory', $parent);
    chmod $usual_modes{$parent}, $parent if $usual_modes{$parent};
    refuse($too_large, "the image has more than $most_files files") if ++$files > $most_files;
  }
  remember($parent);
  $made{$parent} = 1;
}

# The later of two entries with one name counts.
sub make_room {
  my ($name) = @_;
  return if !lstat $name;
  # A directory may have been reached by several names.
  %made = ();
  remove_tree($name);
}

sub remove_tree {
  my ($top) = @_;
  my @left = ($top);
  while (@left) {
    my $name = $left[-1];
    if (!lstat $name) { pop @left; next }
    if (!-d _) { unlink $name or failed('replace', $name); pop @left; next }
    if (rmdir $name) { pop @left; next }
    opendir my $handle, $name or failed('read', $name);
    push @left, map { "$name/$_" } grep { $_ ne '.' && $_ ne '..' } readdir $handle;
  }
}

sub make_directory {
  my ($entry, $name) = @_;
  if (!mkdir $name, 0755) {
    failed('make the directory', $name) if !$!{EEXIST};
    lstat $name;
    if (!-d _) {
      make_room($name);
      mkdir $name, 0755 or failed('make the directory', $name);
    }
  }
  $made{$name} = 1;
  set_all($entry, $name, 5);
}

sub write_file_of {
  my ($entry, $name) = @_;
  my $file;
  # Created and never opened: no link and nothing that lies there already is followed.
  if (!sysopen $file, $name, 0x1 | 0x40 | 0x80 | 0x20000, 0600) {
    failed('make', $name) if !$!{EEXIST};
    make_room($name);
    sysopen $file, $name, 0x1 | 0x40 | 0x80 | 0x20000, 0600 or failed('make', $name);
  }
  my $left = $entry->{size};
  while ($left > 0) {
    fill(1);
    refuse($damaged, 'the tar ends in the middle of an entry') if $buffer eq '';
    my $part = length $buffer < $left ? length $buffer : $left;
    my $wrote = syswrite $file, $buffer, $part;
    failed('write', $name) if !defined $wrote;
    substr $buffer, 0, $wrote, '';
    $left -= $wrote;
  }
  take(padding($entry->{size}));
  # Always, because in some directories files get the group of the directory.
  chown $entry->{uid}, $entry->{gid}, $file or failed('give away', $name) if $is_root;
  chmod $entry->{mode}, $file or failed('set the mode of', $name);
  set_attributes($entry, $name) if %{ $entry->{attributes} };
  utime $entry->{mtime}, $entry->{mtime}, $file;
  close $file or failed('write', $name);
}

sub set_all {
  my ($entry, $name, $type) = @_;
  my $path = "$name\0";
  if ($is_root) {
    syscall($number->{fchownat}, -100, $path, $entry->{uid}, $entry->{gid}, 0x100) == 0 or failed('give away', $name);
  }
  if ($type != 2) {
    # An ordinary user could not delete from a directory that is closed to him.
    my $mode = $type == 5 && !$is_root ? $entry->{mode} | 0700 : $entry->{mode};
    chmod $mode, $name or failed('set the mode of', $name);
  }
  set_attributes($entry, $name) if %{ $entry->{attributes} };
  # What is made in a directory changes its time.
  if ($type == 5) {
    remember($name);
    push @times, [$name, $entry->{mtime}];
  }
  else { set_time($name, $entry->{mtime}) }
}

sub set_time {
  my ($name, $time) = @_;
  my ($path, $times) = ("$name\0", pack 'q4', $time, 0, $time, 0);
  syscall($number->{utimensat}, -100, $path, $times, 0x100);
}

# Only what a program may want to have. Those of overlayfs would let an image name files of other layers.
sub set_attributes {
  my ($entry, $name) = @_;
  for my $attribute (sort keys %{ $entry->{attributes} }) {
    my $is_capability = $attribute eq 'security.capability';
    next if !($is_capability && $is_root) && $attribute !~ /^user\.(?!overlay\.)[^\0]+$/;
    my $failure = set_attribute($name, $attribute, $entry->{attributes}{$attribute});
    # The disk may have none, or links; rights that a program needs must not get lost in silence.
    failed('set the rights of', $name) if $failure && $is_capability;
  }
}

sub set_attribute {
  my ($name, $attribute, $value) = @_;
  my ($path, $key) = ("$name\0", "$attribute\0");
  return syscall($number->{lsetxattr}, $path, $key, $value, length $value, 0) != 0;
}

sub finish_times {
  set_time(@$_) for reverse @times;
}

sub remove_lower {
  # In its place is a new one, of which nothing old may show.
  for my $name (keys %removed) {
    $opaque{$name} = 1 if lstat $name and -d _;
  }
  for my $name (sort keys %removed) {
    # Where nothing of the lower layers is seen, the mark itself would be.
    next if lstat $name or is_closed($name);
    my $path = "$name\0";
    syscall($number->{mknodat}, -100, $path, 0020000, 0) == 0 or failed('delete the lower', $name);
  }
  for my $name (sort keys %opaque) {
    my $place = $name eq '' ? '.' : "$name/.";
    next if !-d $place;
    my $kind = $is_root ? 'trusted' : 'user';
    set_attribute($place, "$kind.overlay.opaque", 'y') and failed('close', $place);
  }
}

sub is_closed {
  my ($name) = @_;
  return 1 if $opaque{''};
  while ($name =~ s{/[^/]*$}{}) { return 1 if $opaque{$name} }
  return 0;
}
