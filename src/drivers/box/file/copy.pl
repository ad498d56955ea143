# Copying, and moving between filesystems, which is copying and deleting.
use strict;

our (%errno, %open, $deepest);

sub copy_file {
  my ($from, $to, $recursive, $exact) = @_;
  my $seen = look(at_working_directory, $from, 0) or fail($from);
  refuse($errno{EISDIR}, $from) if is_directory($seen) && !$recursive;
  refuse($errno{EINVAL}, $from, 'only files and directories are copied') if !is_directory($seen) && !is_file($seen);
  copy_top($from, behind_links($to), $seen, $exact);
}

sub copy_top {
  my ($from, $to, $seen, $exact) = @_;
  my $parent = open_place(at_working_directory, directory_of($to)) // fail($to);
  my @ends = (at_working_directory, $from, $from, $parent, name_of($to), $to, $exact);
  refuse($errno{EINVAL}, $to, 'it lies in what is copied') if is_directory($seen) && lies_in($parent, $seen);
  is_directory($seen) ? copy_directory(@ends, 0) : copy_plain(@ends, 0);
  close_file($parent);
}

# Up to the root, whatever links led to the directory.
sub lies_in {
  my ($directory, $seen) = @_;
  my ($at, $here) = ($directory, look_at_open($directory));
  while (1) {
    return 1 if !$here || same($here, $seen);
    my $above = open_place($at, '..') // return 1;
    close_file($at) if $at != $directory;
    my $there = look_at_open($above);
    return 0 if $there && same($here, $there);
    ($at, $here) = ($above, $there);
  }
}

sub copy_directory {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $depth) = @_;
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $deepest;
  # A link is followed only where the caller has named it.
  my $from = open_at($at, $name, $open{directory} | ($depth ? $open{no_follow} : 0)) // fail($path);
  my $names = names_in($from) // fail($path);
  my $new = "$to_name\0";
  my $made = kernel('mkdirat', $to_at, $new, 0700) == 0;
  $made or $! == $errno{EEXIST} or fail($to_path);
  my $to = open_directory($to_at, $to_name) // fail($to_path);
  my $here = look_at_open($from) or fail($path);
  copy_entry($from, $path, $to, $to_path, $_, $exact, $depth) for @$names;
  take_attributes($to, $here, $exact) if $made || $exact;
  close_file($_) for $from, $to;
  record('copied', $path, $to_path, 0);
}

sub copy_entry {
  my ($from, $path, $to, $to_path, $name, $exact, $depth) = @_;
  my $seen = look($from, $name, no_follow) or return;
  my @ends = ($from, $name, below($path, $name), $to, $name, below($to_path, $name), $exact);
  return copy_directory(@ends, $depth + 1) if is_directory($seen);
  return copy_link(@ends, $seen) if is_link($seen);
  return copy_plain(@ends, $open{no_follow}) if is_file($seen);
  record('skipped', below($path, $name));
}

sub copy_link {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $seen) = @_;
  my $target = link_target($at, $name) // fail($path);
  my ($text, $new) = ("$target\0", "$to_name\0");
  unlink_at($to_at, $to_name, 0);
  kernel('symlinkat', $text, $to_at, $new) == 0 or fail($to_path);
  if ($exact) {
    kernel('fchownat', $to_at, $new, $seen->{uid}, $seen->{gid}, no_follow);
    set_times($to_at, $to_name, $seen, no_follow);
  }
  record('copied', $path, $to_path, 0);
}

# The copy appears whole under its name.
sub copy_plain {
  my ($at, $name, $path, $to_at, $to_name, $to_path, $exact, $flags) = @_;
  my $file = open_at($at, $name, $flags) // fail($path);
  my $seen = look_at_open($file) or fail($path);
  refuse($errno{EINVAL}, $path, 'it is not a file any more') if !is_file($seen);
  my $there = look($to_at, $to_name, no_follow);
  refuse($errno{EISDIR}, $to_path) if $there && is_directory($there);
  refuse($errno{EINVAL}, $to_path, 'it is the file itself') if $there && same($seen, $there);
  my ($out, $temporary) = create_temporary($to_at, $there) or fail($to_path);
  my $size = pour(handle_of($file, '<'), $out);
  my $done = defined $size && take_attributes(fileno $out, $seen, $exact) && close($out)
    && rename_at($to_at, $temporary, $to_name);
  if (!$done) {
    my $why = $! + 0;
    unlink_at($to_at, $temporary, 0);
    refuse($why, $to_path);
  }
  record('copied', $path, $to_path, $size);
}

sub pour {
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

# Owner first: changing it takes away the bits that make programs run as their owner.
sub take_attributes {
  my ($file, $seen, $exact) = @_;
  my ($nothing, $mode) = ("\0", $seen->{mode} & ($exact ? 07777 : 0777 & ~umask));
  kernel('fchownat', $file, $nothing, $seen->{uid}, $seen->{gid}, empty_path) if $exact;
  my $done = chmod $mode, handle_again($file);
  set_times($file, undef, $seen) if $exact;
  return $done;
}

# Without taking the descriptor over: it is not closed with this handle.
sub handle_again {
  my ($file) = @_;
  open(my $handle, '<&', $file) or return undef;
  return $handle;
}

sub rename_file {
  my ($from, $to) = @_;
  if (!rename $from, $to) {
    fail($! == $errno{ENOENT} && look(at_working_directory, $from, no_follow) ? $to : $from) if $! != $errno{EXDEV};
    move_between($from, $to);
  }
  record('renamed');
}

# Between filesystems, and for directories that come with the base of the box. The result appears under its name whole.
sub move_between {
  my ($from, $to) = @_;
  my $seen = look(at_working_directory, $from, no_follow) or fail($from);
  my $parent = open_place(at_working_directory, directory_of($to)) // fail($to);
  my @ends = (at_working_directory, $from, $from, $parent, name_of($to), $to, 1);
  if (is_directory($seen)) {
    refuse($errno{EINVAL}, $to, 'it lies in what is moved') if lies_in($parent, $seen);
    move_directory(@ends);
    delete_all($from);
  } elsif (is_link($seen)) {
    copy_link(@ends, $seen);
  } else {
    refuse($errno{EXDEV}, $from) if !is_file($seen);
    copy_plain(@ends, $open{no_follow});
  }
  unlink_at(at_working_directory, $from, is_directory($seen) ? remove_directory : 0) or fail($from);
}

sub move_directory {
  my ($at, $from, $path, $parent, $name, $to, $exact) = @_;
  my $temporary = temporary_name(look($parent, $name, no_follow));
  copy_directory($at, $from, $path, $parent, $temporary, $to, $exact, 1);
  return if rename_at($parent, $temporary, $name);
  my $why = $! + 0;
  my $made = open_directory($parent, $temporary) // fail($to);
  delete_in($made, $to, 1);
  unlink_at($parent, $temporary, remove_directory);
  refuse($why, $to);
}

1;
