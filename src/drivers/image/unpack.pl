# Unpacks a tar from standard input as one layer of an image.
# Usage: unpack.pl <architecture> <directory> <max files> <max bytes>
# It confines itself first (unpack-confine.pl): the directory becomes its root, so that no name and no link of the tar can
# lead outside. It keeps owners when it runs as root. Whiteouts, which delete files of lower layers, are written in the form that overlayfs reads. At the
# end it prints the number of files and bytes. An exit code from 20 to 22 means that the tar cannot be unpacked, and
# standard error says why.
use strict;
use Errno;

our ($machine, $damaged, $too_large, $not_supported, $cannot);
require($0 =~ s{[^/]*$}{}r . $_) for '../box/lib.pl', '../box/mount.pl', 'unpack-tar.pl', 'unpack-confine.pl';

my %numbers = (
  x64   => { mknodat => 259, lsetxattr => 189, utimensat => 280, fchownat => 260 },
  arm64 => { mknodat => 33, lsetxattr => 6, utimensat => 88, fchownat => 54 },
);
my $at_cwd = -100;          # AT_FDCWD
my $no_follow = 0x100;      # AT_SYMLINK_NOFOLLOW
my $create_new = 0x1 | 0x40 | 0x80 | 0x20000; # O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW
my $max_name_bytes = 4096;
my $max_remembered_bytes = 1 << 29; # of memory for names that are needed at the end
my %default_modes = (tmp => 01777, 'var/tmp' => 01777, root => 0700);

($machine, my $directory, my $max_files, my $max_bytes) = @ARGV;
my $number = $numbers{$machine} or refuse($cannot, "no system calls known for $machine");
my $is_root = $> == 0;
my ($files, $bytes, $remembered_bytes) = (0, 0, 0);
my (%made, %removed, %opaque, @directory_times);

umask 0;
$SIG{PIPE} = 'DEFAULT';
binmode STDIN;
my $opaque_names = confine($directory, $max_bytes);
while (my $entry = next_entry()) { unpack_entry($entry) }
drain_input();
write_whiteouts();
set_directory_times();
print "$files $bytes\n";

# Ends the program after a failed system call. The user is told; some errors are not the fault of the tar.
sub fail {
  my ($action, $name) = @_;
  my $reason = "$!";
  refuse($too_large, 'the disk is full') if $!{ENOSPC} || $!{EDQUOT};
  my $code = $!{EIO} || $!{EROFS} || $!{EPERM} || $!{EACCES} || $!{EOPNOTSUPP} || $!{ENOMEM} ? $cannot : $damaged;
  refuse($code, "cannot $action " . printable($name) . ": $reason");
}

sub unpack_entry {
  my ($entry) = @_;
  my $name = relative_name($entry->{name});
  my $type = $entry->{type};
  my $has_data = $type =~ /^[0\0007]$/ && $entry->{name} !~ m{/$};
  $type = '5' if $type =~ /^[0\0007]$/ && !$has_data; # old tars mark directories by a slash alone
  count_file();
  $bytes += $entry->{size} if $has_data;
  refuse($too_large, "the image has more than $max_bytes bytes") if $bytes > $max_bytes;
  my $is_aufs_file = $name =~ m{(?:^|/)\.wh\.\.wh\.(?!\.opq$)}; # metadata of aufs, which older Dockers used
  if ($is_aufs_file || $name =~ m{^(?:(.*)/)?\.wh\.([^/]*)$}s) {
    my ($parent, $whiteout) = ($1 // '', $2);
    skip_data($entry->{size}) if $has_data;
    return $is_aufs_file ? undef : note_whiteout($parent, $whiteout);
  }
  if ($name eq '') {
    refuse($damaged, 'the root of the tar is not a directory') if $type ne '5';
    return set_metadata($entry, '.', 5);
  }
  # The host creates the devices of a machine; an image may not bring its own.
  return if $type eq '3' || $type eq '4';
  make_parents($name);
  if ($has_data) { return write_regular_file($entry, $name) }
  if ($type eq '5') { return make_directory($entry, $name) }
  remove_existing($name);
  if ($type eq '1') { return make_hard_link($entry, $name) }
  if ($type eq '2') {
    symlink $entry->{link}, $name or fail('make the link', $name);
    return set_metadata($entry, $name, 2);
  }
  if ($type eq '6') {
    my $path = "$name\0";
    syscall($number->{mknodat}, $at_cwd, $path, 0010600, 0) == 0 or fail('make the pipe', $name);
    return set_metadata($entry, $name, 6);
  }
  refuse($not_supported, 'the tar has an entry of an unknown kind, ' . printable($name));
}

sub count_file {
  refuse($too_large, "the image has more than $max_files files") if ++$files > $max_files;
}

# Returns the name without empty and "." parts; the empty name is the root. Names with ".." are refused.
sub relative_name {
  my ($name) = @_;
  refuse($damaged, 'the tar has a name that is too long, ' . printable($name)) if length $name > $max_name_bytes;
  return $name if $name !~ m{(?:^|/)(?:\.{0,2})(?:/|$)};
  my @parts = grep { $_ ne '' && $_ ne '.' } split m{/}, $name;
  refuse($damaged, 'the tar has a name that leads out of it, ' . printable($name)) if grep { $_ eq '..' } @parts;
  return join '/', @parts;
}

sub make_hard_link {
  my ($entry, $name) = @_;
  my $target = relative_name($entry->{link});
  return if link "/$target", $name;
  my $description = 'the hard link ' . printable($name) . ' points to ' . printable($target);
  refuse($damaged, "$description, which is not in its layer") if $!{ENOENT} || $!{ENOTDIR};
  refuse($damaged, "$description, which is a directory") if $!{EPERM};
  fail('link', $name);
}

# Remembers a whiteout until all entries are unpacked, because it does not apply to files of its own layer.
sub note_whiteout {
  my ($parent, $name) = @_;
  if ($name eq '.wh..opq') { $opaque{$parent} = 1 }
  elsif ($name eq '' || $name eq '.' || $name eq '..') { refuse($damaged, 'the tar has a whiteout without a name') }
  else { $removed{$parent eq '' ? $name : "$parent/$name"} = 1 }
  make_parents("$parent/x") if $parent ne '';
  remember($parent . $name);
}

# Limits the memory for names. Each takes about 500 bytes beside its characters.
sub remember {
  my ($name) = @_;
  $remembered_bytes += 500 + length $name;
  refuse($too_large, 'the names in the image take too much memory') if $remembered_bytes > $max_remembered_bytes;
}

sub make_parents {
  my ($name) = @_;
  my $slash = rindex $name, '/';
  return if $slash < 0;
  my $parent = substr $name, 0, $slash;
  return if $made{$parent};
  if (!-d $parent) {
    make_parents($parent);
    # A dangling link makes this fail. Directories that the tar does not describe get the usual mode.
    mkdir $parent, 0755 or fail('make the directory', $parent);
    chmod $default_modes{$parent}, $parent if $default_modes{$parent};
    count_file();
  }
  remember($parent);
  $made{$parent} = 1;
}

# Removes what an earlier entry with the same name created.
sub remove_existing {
  my ($name) = @_;
  return if !lstat $name;
  # All names are forgotten, because the same directory may have been reached by several.
  %made = ();
  remove_tree($name);
}

sub remove_tree {
  my ($top) = @_;
  my @left = ($top);
  while (@left) {
    my $name = $left[-1];
    if (!lstat $name) { pop @left; next }
    if (!-d _) { unlink $name or fail('replace', $name); pop @left; next }
    if (rmdir $name) { pop @left; next }
    opendir my $handle, $name or fail('read', $name);
    push @left, map { "$name/$_" } grep { $_ ne '.' && $_ ne '..' } readdir $handle;
  }
}

sub make_directory {
  my ($entry, $name) = @_;
  if (!mkdir $name, 0755) {
    fail('make the directory', $name) if !$!{EEXIST};
    lstat $name;
    if (!-d _) {
      remove_existing($name);
      mkdir $name, 0755 or fail('make the directory', $name);
    }
  }
  $made{$name} = 1;
  set_metadata($entry, $name, 5);
}

sub write_regular_file {
  my ($entry, $name) = @_;
  my $file;
  # Only creates files, and never opens an existing one or follows a link.
  if (!sysopen $file, $name, $create_new, 0600) {
    fail('make', $name) if !$!{EEXIST};
    remove_existing($name);
    sysopen $file, $name, $create_new, 0600 or fail('make', $name);
  }
  copy_data($file, $entry->{size}) or fail('write', $name);
  # Also for root's files, because in setgid directories new files get the group of the directory.
  chown $entry->{uid}, $entry->{gid}, $file or fail('change the owner of', $name) if $is_root;
  chmod $entry->{mode}, $file or fail('set the mode of', $name);
  set_attributes($entry, $name) if %{ $entry->{attributes} };
  utime $entry->{mtime}, $entry->{mtime}, $file;
  close $file or fail('write', $name);
}

sub set_metadata {
  my ($entry, $name, $type) = @_;
  my $path = "$name\0";
  if ($is_root) {
    syscall($number->{fchownat}, $at_cwd, $path, $entry->{uid}, $entry->{gid}, $no_follow) == 0 or fail('change the owner of', $name);
  }
  if ($type != 2) {
    # Without write permission an ordinary user could not delete the directory's files later.
    my $mode = $type == 5 && !$is_root ? $entry->{mode} | 0700 : $entry->{mode};
    chmod $mode, $name or fail('set the mode of', $name);
  }
  set_attributes($entry, $name) if %{ $entry->{attributes} };
  # Creating files changes the time of their directory, so directories are set at the end.
  if ($type == 5) {
    remember($name);
    push @directory_times, [$name, $entry->{mtime}];
  }
  else { set_time($name, $entry->{mtime}) }
}

sub set_time {
  my ($name, $time) = @_;
  my ($path, $times) = ("$name\0", pack 'q4', $time, 0, $time, 0);
  syscall($number->{utimensat}, $at_cwd, $path, $times, $no_follow);
}

# Sets user attributes and file capabilities. Attributes of overlayfs would let an image refer to other layers.
sub set_attributes {
  my ($entry, $name) = @_;
  for my $attribute (sort keys %{ $entry->{attributes} }) {
    my $is_capability = $attribute eq 'security.capability';
    next if !($is_capability && $is_root) && $attribute !~ /^user\.(?!overlay\.)[^\0]+$/;
    my $failure = set_attribute($name, $attribute, $entry->{attributes}{$attribute});
    # Not all filesystems and file types have attributes. Lost capabilities would break programs, so they are errors.
    fail('set the capabilities of', $name) if $failure && $is_capability;
  }
}

sub set_attribute {
  my ($name, $attribute, $value) = @_;
  my ($path, $key) = ("$name\0", "$attribute\0");
  return syscall($number->{lsetxattr}, $path, $key, $value, length $value, 0) != 0;
}

sub set_directory_times {
  set_time(@$_) for reverse @directory_times;
}

sub write_whiteouts {
  # A directory that replaces a removed one must not show the files of the lower layers.
  for my $name (keys %removed) {
    $opaque{$name} = 1 if lstat $name and -d _;
  }
  for my $name (sort keys %removed) {
    # Below an opaque directory the whiteout itself would become visible.
    next if lstat $name or is_in_opaque($name);
    my $path = "$name\0";
    syscall($number->{mknodat}, $at_cwd, $path, 0020000, 0) == 0 or fail('write the whiteout', $name);
  }
  for my $name (sort keys %opaque) {
    my $path = $name eq '' ? '.' : "$name/.";
    next if !-d $path;
    if (!$opaque_names) { set_attribute($path, 'user.overlay.opaque', 'y') and fail('make opaque', $path) }
    else { defined syswrite $opaque_names, "$path\0" or fail('make opaque', $path) }
  }
}

sub is_in_opaque {
  my ($name) = @_;
  return 1 if $opaque{''};
  while ($name =~ s{/[^/]*$}{}) { return 1 if $opaque{$name} }
  return 0;
}
