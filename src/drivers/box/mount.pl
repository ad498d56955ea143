# Subroutines that make the user namespace and the mounts of a box.
use strict;

our %namespace;

# Reads the config file of a box: lines of a key and a value. Keys that may occur several times become lists.
sub read_config {
  my ($file) = @_;
  my %config = (limit => [], layer => [], container => [], depends => []);
  for (split /\n/, read_file($file) // die "no such box: $file\n") {
    my ($key, $value) = split / /, $_, 2;
    if (ref $config{$key}) { push @{$config{$key}}, $value } else { $config{$key} = $value }
  }
  return %config;
}

# Makes a user namespace that maps 65536 uids, starting with $uid. It is owned by $owner, who may enter it; by default that
# is $uid.
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

# Without root, only the own uid can be mapped, which becomes root inside.
sub enter_own_namespace {
  my ($uid, $gid) = ($>, $) + 0);
  call('unshare', $namespace{user});
  write_file('/proc/self/setgroups', 'deny');
  write_file('/proc/self/uid_map', "0 $uid 1\n") or die "uid_map: $!\n";
  write_file('/proc/self/gid_map', "0 $gid 1\n") or die "gid_map: $!\n";
  return undef;
}

# What a box may need of the host's file systems, beside its root and what its configuration names.
my @needed_mounts = qw(/proc /sys /dev /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc);

# Detaches the other file systems of the host from this mount namespace. Without a shared root, as on hosts without systemd,
# the namespace does not learn that the host unmounts one, and would keep its device in use as long as the box runs.
sub leave_mounts {
  my ($config) = @_;
  my $home = $config->{directory} =~ s{/[^/]+/[^/]+$}{}r;
  my @kept = (@needed_mounts, $home, grep { m{^/} } map { ref ? @$_ : $_ } values %$config);
  # The last mount at a path covers the others.
  for (reverse split /\n/, read_file('/proc/self/mountinfo') // '') {
    my $place = (split ' ')[4] =~ s/\\(\d{3})/chr oct $1/ger;
    next if $place eq '/' || grep { "$place/" =~ m{^\Q$_\E/} || "$_/" =~ m{^\Q$place\E/} } @kept;
    attempt('umount2', "$place\0", 2); # MNT_DETACH; without root the mounts are locked
  }
}

# Bind-mounts the directory of a machine where every user can reach it, and makes it the working directory: bwrap resolves
# paths as the user of the program, and only root may traverse the parent of the directory.
sub enter_reachable {
  my ($directory) = @_;
  my $place = $directory =~ s{/[^/]+/[^/]+$}{/mount}r;
  mkdir $place, 0711; # a home of an older version does not have it
  mount_at($directory, $place, 'none', 0x1000); # MS_BIND
  chdir $place or die "$place: $!\n";
}

sub mount_at {
  my ($source, $target, $type, $flags, $options) = @_;
  $options //= '';
  my @words = map { "$_\0" } $source, $target, $type, $options;
  attempt('mount', $words[0], $words[1], $words[2], $flags, $words[3]) == 0 or die "mount $type at $target: $!\n";
}

# Mounts the terminals of a box, to be bound at /dev/pts. bwrap would mount them without a limit, and the kernel has a limit
# for all boxes together.
sub mount_terminals {
  my ($max) = @_;
  $max //= 256;
  mkdir 'pts', 0711;
  mount_at('devpts', 'pts', 'devpts', 2 | 8, "newinstance,ptmxmode=0666,mode=620,max=$max"); # nosuid, noexec
}

# The bwrap arguments for /dev.
sub device_arguments {
  return ('--dev', '/dev', '--dev-bind', 'pts', '/dev/pts', '--perms', '1777', '--tmpfs', '/dev/shm');
}

# Bind-mounts a directory with its owners mapped by the user namespace (an idmapped mount), read-only by default.
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

# Mounts the layers of an image, lowest first, and returns the value for `lowerdir`.
sub map_layers {
  my ($userns, $layers) = @_;
  for my $at (0 .. $#$layers) {
    mkdir "lower/$at", 0711;
    map_owners($userns, $layers->[$at], "lower/$at");
  }
  return layer_names($layers);
}

# Relative paths, so that /proc/mounts in the box does not show paths of the host.
sub layer_names {
  my ($layers) = @_;
  return join ':', @$layers ? map { "lower/$_" } reverse 0 .. $#$layers : 'lower';
}

# The names of the checkpoints to show in the box, each of which has a mount point. To be called in the directory of the
# box.
sub views {
  opendir(my $directory, 'shown/checkpoints') or return ();
  return grep { /^[a-z0-9]/ } readdir $directory;
}

sub is_mounted {
  my ($path) = @_;
  return ((stat $path)[0] // 0) != ((stat "$path/..")[0] // 0);
}

# A checkpoint that cannot be mounted does not keep the box from starting.
sub mount_view {
  my ($view, $config) = @_;
  my $target = "shown/checkpoints/$view";
  my $copy = -d "checkpoint/$view/layer" ? "checkpoint/$view/layer" : "checkpoint/$view";
  eval {
    mount_root_view($copy, $target, $config);
    mount_usr_view($copy, "$target/usr", $config) if !exists $config->{tools};
    return 1;
  } or print "cannot show the checkpoint $view: $@";
}

sub mount_root_view {
  my ($copy, $target, $config) = @_;
  my $lower = exists $config->{tools} ? layer_names($config->{layer}) : 'lower/base';
  my $extra = $config->{way} eq 'full' ? '' : ',userxattr';
  mount_at('overlay', $target, 'overlay', 1 | 2 | 4, "lowerdir=$copy/upper:$lower$extra"); # read-only, nosuid, nodev
}

# Without root, only the files that the box wrote are shown.
sub mount_usr_view {
  my ($copy, $target, $config) = @_;
  die "$target is a link\n" if -l $target;
  return map_owners(undef, "$copy/upper-usr", $target) if $config->{way} ne 'full';
  mount_at('overlay', $target, 'overlay', 1 | 2 | 4, "lowerdir=$copy/upper-usr:lower/mask:lower/usr");
}

1;
