# File operations on trees. Each keeps the directories above the current one open, so that a link that replaces one of them
# is never followed. Loaded by file.pl.
use strict;

our (%errno, %open, $max_depth);

# Declared here as well, so that this file compiles by itself.
sub at_working_directory ();
sub no_follow ();
sub remove_directory ();

sub list_files {
  my ($path, $recursive, $max) = @_;
  my $stat = stat_at(at_working_directory, $path, 0) or fail($path);
  if (!is_directory($stat)) {
    record('listing');
    return send_entry(at_working_directory, $path, $path, $stat);
  }
  my $directory = open_at(at_working_directory, $path, $open{directory}) // fail($path);
  my $names = names_in($directory) // fail($path);
  record('listing');
  my $left = $max;
  list_in($directory, $names, $path, $recursive, \$left, 1);
  record('more') if $left < 0;
}

# Directories that cannot be opened are listed without their content. Files that vanish meanwhile are left out.
sub list_in {
  my ($directory, $names, $path, $recursive, $left, $depth) = @_;
  for my $name (@$names) {
    my $stat = stat_at($directory, $name, no_follow) or next;
    return if --$$left < 0;
    send_entry($directory, $name, below($path, $name), $stat);
    next if !$recursive || !is_directory($stat) || $depth >= $max_depth;
    my $inner = open_directory($directory, $name) // next;
    list_in($inner, names_in($inner) // [], below($path, $name), 1, $left, $depth + 1);
    close_file($inner);
  }
}

sub send_entry {
  my ($at, $name, $path, $stat) = @_;
  my $target = is_link($stat) ? link_target($at, $name) : '';
  record('entry', $path, @$stat{qw(mode size mtime mtime_nano uid gid)}, $target // '');
}

sub delete_file {
  my ($path, $recursive) = @_;
  my $stat = stat_at(at_working_directory, $path, no_follow) or fail($path);
  if (!is_directory($stat)) {
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
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $max_depth;
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

# Applies a change to a path and, if recursive, first to everything below it, because the change may make a directory
# inaccessible.
sub change {
  my ($path, $recursive, $do) = @_;
  my $stat = stat_at(at_working_directory, $path, 0) or fail($path);
  if ($recursive && is_directory($stat)) {
    my $directory = open_at(at_working_directory, $path, $open{directory}) // fail($path);
    change_in($directory, $path, $do, 1);
    close_file($directory);
  }
  $do->(at_working_directory, $path, $stat, 0) or fail($path);
  record('changed', $path);
}

sub change_in {
  my ($directory, $path, $do, $depth) = @_;
  refuse($errno{ENAMETOOLONG}, $path) if $depth > $max_depth;
  my $names = names_in($directory) // fail($path);
  for my $name (@$names) {
    my $inner_path = below($path, $name);
    my $stat = stat_at($directory, $name, no_follow) or next;
    if (is_directory($stat)) {
      my $inner = open_directory($directory, $name) // fail($inner_path);
      change_in($inner, $inner_path, $do, $depth + 1);
      close_file($inner);
    }
    my $done = $do->($directory, $name, $stat, no_follow) // next;
    $done or $! == $errno{ENOENT} or fail($inner_path);
    record('changed', $inner_path);
  }
}

sub chmod_file {
  my ($path, $mode, $recursive) = @_;
  change($path, $recursive, sub {
    my ($at, $name, $stat, $flags) = @_;
    return undef if is_link($stat);
    my $file = $flags && (is_file($stat) || is_directory($stat)) ? open_at($at, $name, $open{no_follow}) : undef;
    return chmod $mode, handle_of($file, '<') if defined $file;
    my $named = "$name\0";
    return system_call('fchmodat', $at, $named, $mode + 0) == 0;
  });
}

sub chown_file {
  my ($path, $user, $group, $recursive) = @_;
  my $uid = id_of($user, '/etc/passwd', 'user', $path);
  my $gid = id_of($group, '/etc/group', 'group', $path);
  change($path, $recursive, sub {
    my ($at, $name, $stat, $flags) = @_;
    my $named = "$name\0";
    return system_call('fchownat', $at, $named, $uid, $gid, $flags) == 0;
  });
}

# Looks up a uid or gid in the files of the box. The C library would load NSS modules of the box.
sub id_of {
  my ($name, $file, $kind, $path) = @_;
  return -1 if $name eq '';
  return $name + 0 if $name =~ /^[0-9]+$/;
  my $text = '';
  my $open = open_at(at_working_directory, $file, 0);
  sysread handle_of($open, '<'), $text, 1 << 20 if defined $open;
  return $1 + 0 if $text =~ /^\Q$name\E:[^:\n]*:([0-9]+):/m;
  refuse($errno{EINVAL}, $path, "there is no $kind of that name");
}

1;
