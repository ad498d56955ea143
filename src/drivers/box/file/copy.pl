# Copies files and trees, and moves them between filesystems by copying and deleting. Loaded by file.pl.
use strict;

our (%errno, %open, $max_depth);

# Declared here as well, so that this file compiles by itself.
sub at_working_directory ();
sub no_follow ();
sub remove_directory ();
sub empty_path ();

sub copy_file {
  my ($from, $to, $recursive, $exact) = @_;
  my $stat = stat_at(at_working_directory, $from, 0) or fail($from);
  refuse($errno{EISDIR}, $from) if is_directory($stat) && !$recursive;
  refuse($errno{EINVAL}, $from, 'only files and directories can be copied') if !is_directory($stat) && !is_file($stat);
  copy_top($from, resolve_links($to), $stat, $exact);
}

sub copy_top {
  my ($from, $to, $stat, $exact) = @_;
  my $parent = open_path(at_working_directory, directory_of($to)) // fail($to);
  my @ends = (at_working_directory, $from, $from, $parent, name_of($to), $to, $exact);
  refuse($errno{EINVAL}, $to, 'it is inside the source') if is_directory($stat) && is_inside($parent, $stat);
  is_directory($stat) ? copy_directory(@ends, 0) : copy_plain(@ends, 0);
  close_file($parent);
}

# Walks up to the root to find whether a directory is inside another, whatever links led to it.
sub is_inside {
  my ($directory, $stat) = @_;
  my ($at, $here) = ($directory, stat_open($directory));
  while (1) {
    return 1 if !$here || is_same_file($here, $stat);
    my $above = open_path($at, '..') // return 1;
    close_file($at) if $at != $directory;
    my $there = stat_open($above);
    return 0 if $there && is_same_file($here, $there);
    ($at, $here) = ($above, $there);
  }
}

sub copy_directory {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $depth) = @_;
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $max_depth;
  # Only a link that the caller named is followed.
  my $from = open_at($at, $name, $open{directory} | ($depth ? $open{no_follow} : 0)) // fail($path);
  my $names = names_in($from) // fail($path);
  my $new = "$to_name\0";
  my $made = system_call('mkdirat', $to_at, $new, 0700) == 0;
  $made or $! == $errno{EEXIST} or fail($to_path);
  my $to = open_directory($to_at, $to_name) // fail($to_path);
  my $here = stat_open($from) or fail($path);
  copy_entry($from, $path, $to, $to_path, $_, $exact, $depth) for @$names;
  copy_attributes($to, $here, $exact) if $made || $exact;
  close_file($_) for $from, $to;
  record('copied', $path, $to_path, 0);
}

sub copy_entry {
  my ($from, $path, $to, $to_path, $name, $exact, $depth) = @_;
  my $stat = stat_at($from, $name, no_follow) or return;
  my @ends = ($from, $name, below($path, $name), $to, $name, below($to_path, $name), $exact);
  return copy_directory(@ends, $depth + 1) if is_directory($stat);
  return copy_link(@ends, $stat) if is_link($stat);
  return copy_plain(@ends, $open{no_follow}) if is_file($stat);
  record('skipped', below($path, $name));
}

sub copy_link {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $stat) = @_;
  my $target = link_target($at, $name) // fail($path);
  my ($text, $new) = ("$target\0", "$to_name\0");
  unlink_at($to_at, $to_name, 0);
  system_call('symlinkat', $text, $to_at, $new) == 0 or fail($to_path);
  if ($exact) {
    system_call('fchownat', $to_at, $new, $stat->{uid}, $stat->{gid}, no_follow);
    set_times($to_at, $to_name, $stat, no_follow);
  }
  record('copied', $path, $to_path, 0);
}

# Writes to a temporary file, so that the copy has its name only when it is complete.
sub copy_plain {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $flags) = @_;
  my $file = open_at($at, $name, $flags) // fail($path);
  my $stat = stat_open($file) or fail($path);
  refuse($errno{EINVAL}, $path, 'it is no longer a regular file') if !is_file($stat);
  my $there = stat_at($to_at, $to_name, no_follow);
  refuse($errno{EISDIR}, $to_path) if $there && is_directory($there);
  refuse($errno{EINVAL}, $to_path, 'it is the file itself') if $there && is_same_file($stat, $there);
  my ($out, $temporary) = create_temporary($to_at, $there) or fail($to_path);
  my $size = copy_bytes(handle_of($file, '<'), $out);
  my $done = defined $size && copy_attributes(fileno $out, $stat, $exact) && close($out)
    && rename_at($to_at, $temporary, $to_name);
  if (!$done) {
    my $why = $! + 0;
    unlink_at($to_at, $temporary, 0);
    refuse($why, $to_path);
  }
  record('copied', $path, $to_path, $size);
}

sub copy_bytes {
  my ($in, $out) = @_;
  my ($size, $piece) = (0);
  while (1) {
    my $got = sysread $in, $piece, 1 << 20;
    next if !defined $got && $! == $errno{EINTR};
    return undef if !defined $got;
    return $size if $got == 0;
    write_all($out, $piece) or return undef;
    $size += $got;
    record('busy') if ($size & 0x3ffffff) < $got;
  }
}

# The owner is set first, because chown clears the setuid and setgid bits.
sub copy_attributes {
  my ($file, $stat, $exact) = @_;
  my ($nothing, $mode) = ("\0", $stat->{mode} & ($exact ? 07777 : 0777 & ~umask));
  system_call('fchownat', $file, $nothing, $stat->{uid}, $stat->{gid}, empty_path) if $exact;
  my $done = chmod $mode, duplicate_handle($file);
  set_times($file, undef, $stat) if $exact;
  return $done;
}

# Returns a handle on a duplicate, so that closing it does not close the descriptor.
sub duplicate_handle {
  my ($file) = @_;
  open(my $handle, '<&', $file) or return undef;
  return $handle;
}

sub rename_file {
  my ($from, $to) = @_;
  if (!rename $from, $to) {
    fail($! == $errno{ENOENT} && stat_at(at_working_directory, $from, no_follow) ? $to : $from) if $! != $errno{EXDEV};
    move_between($from, $to);
  }
  record('renamed');
}

# rename(2) fails between filesystems, and for directories of the lower layers. The target appears when it is complete.
sub move_between {
  my ($from, $to) = @_;
  my $stat = stat_at(at_working_directory, $from, no_follow) or fail($from);
  my $parent = open_path(at_working_directory, directory_of($to)) // fail($to);
  my @ends = (at_working_directory, $from, $from, $parent, name_of($to), $to, 1);
  if (is_directory($stat)) {
    refuse($errno{EINVAL}, $to, 'it is inside the source') if is_inside($parent, $stat);
    move_directory(@ends);
    delete_all($from);
  } elsif (is_link($stat)) {
    copy_link(@ends, $stat);
  } else {
    refuse($errno{EXDEV}, $from) if !is_file($stat);
    copy_plain(@ends, $open{no_follow});
  }
  unlink_at(at_working_directory, $from, is_directory($stat) ? remove_directory : 0) or fail($from);
}

sub move_directory {
  my ($at, $from, $path, $parent, $name, $to, $exact) = @_;
  my $temporary = temporary_name(stat_at($parent, $name, no_follow));
  copy_directory($at, $from, $path, $parent, $temporary, $to, $exact, 1);
  return if rename_at($parent, $temporary, $name);
  my $why = $! + 0;
  my $made = open_directory($parent, $temporary) // fail($to);
  delete_in($made, $to, 1);
  unlink_at($parent, $temporary, remove_directory);
  refuse($why, $to);
}

1;
