# How the layers of a box are put together.
use strict;

our %namespace;

# Of the whole range. A process of the uid that owns it may enter it; that is the first one unless another is given.
sub make_user_namespace {
  my ($uid, $owner) = @_;
  pipe(my $ready_out, my $ready_in) && pipe(my $done_out, my $done_in) or die "pipe: $!\n";
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    close $done_in;
    become($owner // $uid);
    call('unshare', $namespace{user});
    syswrite $ready_in, 'x';
    sysread $done_out, my $end, 1;
    kill 'KILL', $$;
  }
  close $ready_in;
  close $done_out;
  sysread($ready_out, my $ready, 1) or die "cannot make a user namespace\n";
  for my $map ('uid_map', 'gid_map') {
    write_file("/proc/$child/$map", "0 $uid 65536\n") or die "$map: $!\n";
  }
  open(my $namespace, '<', "/proc/$child/ns/user") or die "user namespace: $!\n";
  close $done_in;
  waitpid $child, 0;
  return $namespace;
}

# An ordinary user has one uid to give, his own, and it is root inside.
sub enter_own_namespace {
  my ($uid, $gid) = ($>, $) + 0);
  call('unshare', $namespace{user});
  write_file('/proc/self/setgroups', 'deny');
  write_file('/proc/self/uid_map', "0 $uid 1\n") or die "uid_map: $!\n";
  write_file('/proc/self/gid_map', "0 $gid 1\n") or die "gid_map: $!\n";
  return undef;
}

sub mount_at {
  my ($source, $target, $type, $flags, $options) = @_;
  $options //= '';
  my @words = map { "$_\0" } $source, $target, $type, $options;
  attempt('mount', $words[0], $words[1], $words[2], $flags, $words[3]) == 0 or die "mount $type at $target: $!\n";
}

# Shows a directory at another place with the owners that the user namespace makes of those on disk, read-only if it is
# not to be written.
sub map_owners {
  my ($userns, $source, $target, $is_writable) = @_;
  my ($from, $to, $empty) = ("$source\0", "$target\0", "\0");
  my $tree = call('open_tree', -100, $from, 1 | 0x80000);
  my $set = ($is_writable ? 0 : 1) | 2 | 4; # read-only, nosuid, nodev
  my $attributes = pack('QQQQ', $set | ($userns ? 0x100000 : 0), 0, 0, $userns ? fileno $userns : 0);
  call('mount_setattr', $tree, $empty, 0x1000, $attributes, length $attributes);
  call('move_mount', $tree, $empty, -100, $to, 4);
  call('close', $tree);
}

# The layers of an image, lowest first. The answer is what an overlay calls them: relative paths, so that the list of
# mounts inside does not tell where things lie on the host.
sub map_layers {
  my ($userns, $layers) = @_;
  my @names;
  for my $at (0 .. $#$layers) {
    mkdir "lower/$at", 0711;
    map_owners($userns, $layers->[$at], "lower/$at");
    unshift @names, "lower/$at";
  }
  return join ':', @names ? @names : 'lower';
}

1;
