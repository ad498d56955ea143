# File operations that walk: each holds the directories on its way open, so that a link put in place of one of them is
# never followed.
use strict;

our (%errno, %open, $deepest);

sub list_files {
  my ($path, $recursive, $most) = @_;
  my $seen = look(at_working_directory, $path, 0) or fail($path);
  if (!is_directory($seen)) {
    record('listing');
    return send_entry(at_working_directory, $path, $path, $seen);
  }
  my $directory = open_at(at_working_directory, $path, $open{directory}) // fail($path);
  my $names = names_in($directory) // fail($path);
  record('listing');
  my $left = $most;
  list_in($directory, $names, $path, $recursive, \$left, 1);
  record('more') if $left < 0;
}

# What cannot be opened is shown and not looked into; what vanishes meanwhile is not shown.
sub list_in {
  my ($directory, $names, $path, $recursive, $left, $depth) = @_;
  for my $name (@$names) {
    my $seen = look($directory, $name, no_follow) or next;
    return if --$$left < 0;
    send_entry($directory, $name, below($path, $name), $seen);
    next if !$recursive || !is_directory($seen) || $depth >= $deepest;
    my $inner = open_directory($directory, $name) // next;
    list_in($inner, names_in($inner) // [], below($path, $name), 1, $left, $depth + 1);
    close_file($inner);
  }
}

sub send_entry {
  my ($at, $name, $path, $seen) = @_;
  my $target = is_link($seen) ? link_target($at, $name) : '';
  record('entry', $path, @$seen{qw(mode size mtime mtime_nano uid gid)}, $target // '');
}

sub delete_file {
  my ($path, $recursive) = @_;
  my $seen = look(at_working_directory, $path, no_follow) or fail($path);
  if (!is_directory($seen)) {
    unlink_at(at_working_directory, $path, 0) or fail($path);
  } else {
    delete_all($path) if $recursive;
    unlink_at(at_working_directory, $path, remove_directory) or fail($path);
  }
  record('deleted', $path);
}

sub delete_all {
  my ($path) = @_;
  my $directory = open_directory(at_working_directory, $path) // fail($path);
  delete_in($directory, $path, 1);
  close_file($directory);
}

sub delete_in {
  my ($directory, $path, $depth) = @_;
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $deepest;
  my $names = names_in($directory) // fail($path);
  for my $name (@$names) {
    my $inner_path = below($path, $name);
    if (!unlink_at($directory, $name, 0)) {
      next if $! == $errno{ENOENT};
      fail($inner_path) if $! != $errno{EISDIR};
      my $inner = open_directory($directory, $name) // fail($inner_path);
      delete_in($inner, $inner_path, $depth + 1);
      close_file($inner);
      unlink_at($directory, $name, remove_directory) or $! == $errno{ENOENT} or fail($inner_path);
    }
    record('deleted', $inner_path);
  }
}

# Does something to what is at a path and, if asked, to everything below, which comes first: a directory that is closed
# to us afterwards has been walked by then.
sub change {
  my ($path, $recursive, $do) = @_;
  my $seen = look(at_working_directory, $path, 0) or fail($path);
  if ($recursive && is_directory($seen)) {
    my $directory = open_at(at_working_directory, $path, $open{directory}) // fail($path);
    change_in($directory, $path, $do, 1);
    close_file($directory);
  }
  $do->(at_working_directory, $path, $seen, 0) or fail($path);
  record('changed', $path);
}

sub change_in {
  my ($directory, $path, $do, $depth) = @_;
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $deepest;
  my $names = names_in($directory) // fail($path);
  for my $name (@$names) {
    my $inner_path = below($path, $name);
    my $seen = look($directory, $name, no_follow) or next;
    if (is_directory($seen)) {
      my $inner = open_directory($directory, $name) // fail($inner_path);
      change_in($inner, $inner_path, $do, $depth + 1);
      close_file($inner);
    }
    my $done = $do->($directory, $name, $seen, no_follow) // next;
    $done or $! == $errno{ENOENT} or fail($inner_path);
    record('changed', $inner_path);
  }
}

sub chmod_file {
  my ($path, $mode, $recursive) = @_;
  change($path, $recursive, sub {
    my ($at, $name, $seen, $flags) = @_;
    return undef if is_link($seen);
    my $file = $flags && (is_file($seen) || is_directory($seen)) ? open_at($at, $name, $open{no_follow}) : undef;
    return chmod $mode, handle_of($file, '<') if defined $file;
    my $named = "$name\0";
    return kernel('fchmodat', $at, $named, $mode + 0) == 0;
  });
}

sub chown_file {
  my ($path, $user, $group, $recursive) = @_;
  my $uid = number_of($user, '/etc/passwd', 'user', $path);
  my $gid = number_of($group, '/etc/group', 'group', $path);
  change($path, $recursive, sub {
    my ($at, $name, $seen, $flags) = @_;
    my $named = "$name\0";
    return kernel('fchownat', $at, $named, $uid, $gid, $flags) == 0;
  });
}

# From the files of the box: the C library would load whatever the box has configured for it.
sub number_of {
  my ($name, $file, $what, $path) = @_;
  return -1 if $name eq '';
  return $name + 0 if $name =~ /^[0-9]+$/;
  my $text = '';
  my $open = open_at(at_working_directory, $file, 0);
  sysread handle_of($open, '<'), $text, 1 << 20 if defined $open;
  return $1 + 0 if $text =~ /^\Q$name\E:[^:\n]*:([0-9]+):/m;
  refuse($errno{EINVAL}, $path, "there is no $what of that name");
}

1;
