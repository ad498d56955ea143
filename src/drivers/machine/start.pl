# Library of box/start.pl: starts the program of an image in a box. What the user configured (arguments, environment,
# files, mount points) is read from a file that only the host's root can read, and never appears on a command line of the
# host.
# Usage: box/start.pl calls begin_machine, prepare_machine and run_machine, in this order.
use strict;

our %namespace;
my $mark = "\035"; # precedes text in the log that comes from the platform and not from the program

# From here on, errors are written to the file that the driver waits for. The prefix "refused: " marks those that the
# machine's description causes.
sub begin_machine {
  my ($config) = @_;
  my $failed = "$config->{directory}/failed";
  unlink $failed, 'containers';
  $| = 1;
  $SIG{__DIE__} = sub {
    my ($reason) = @_;
    # Renamed when it is complete, because the driver reads it as soon as it exists.
    rename "$failed.new", $failed if !-e $failed && write_file("$failed.new", $reason);
    print $mark, $reason =~ s/^refused: //r;
    exit 111;
  };
  my ($uptime) = split /\./, read_file('/proc/uptime');
  write_file('began', "$uptime\n");
  write_file('oom', oom_kills($config->{'memory-group'}) . "\n");
  # Containers have layers of their own.
  renew_layer($config) if !@{$config->{container}};
}

sub oom_kills {
  my ($group) = @_;
  return 0 if !defined $group;
  my $counts = read_file("$group/memory.events") // read_file("$group/memory.oom_control") // '';
  return $counts =~ /^oom_kill (\d+)/m ? $1 : 0;
}

# Discards what an earlier run wrote, in case that run ended without its finish script, as in a reboot.
sub renew_layer {
  my ($config) = @_;
  if (-e 'layer' && !$config->{'keeps-root'}) {
    mkdir $config->{trash}, 0700;
    my ($id) = $config->{directory} =~ m{([^/]+)$};
    rename 'layer', "$config->{trash}/$id-$$-" . time or die "discard the previous root filesystem: $!\n";
  }
  my ($limit, $project) = @$config{'root-limit', 'root-project'};
  if (!-d 'layer/work') {
    quietly(qw(btrfs subvolume create layer)) if !defined $project && ($limit // 'none') ne 'none' && !-e 'layer';
    for (['layer', 0711], ['layer/upper', 0755], ['layer/work', 0700]) {
      my ($directory, $mode) = @$_;
      mkdir $directory, $mode or -d $directory or die "$directory: $!\n";
    }
    chown $config->{uid}, $config->{uid}, 'layer/upper' if defined $config->{uid};
  }
  if (defined $project) {
    quietly('perl', $config->{'project-program'}, 'set', $project, 'layer');
    my $bytes = $limit eq 'none' ? 0 : $limit; # 0 is no limit
    my $files = int(($bytes + 4095) / 4096); # an empty file counts as a block
    my $limits = "limit -p bhard=$bytes ihard=$files $project";
    quietly('xfs_quota', '-f', '-x', '-c', $limits, $config->{'quota-mount'});
  }
  # A kept layer from before the machine had a size limit is no subvolume, and cannot be limited.
  quietly('btrfs', 'qgroup', 'limit', $limit, 'layer') if defined $limit && is_subvolume('layer');
}

# The root of a btrfs subvolume has the inode number 256.
sub is_subvolume {
  my ($directory) = @_;
  return ((stat $directory)[1] // 0) == 256;
}

# Runs a command without writing its output to the machine's log.
sub quietly {
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    open(STDOUT, '>', '/dev/null');
    open(STDERR, '>', '/dev/null');
    exec @_ or exit 127;
  }
  waitpid $child, 0;
  die "$_[0] $_[1] exited with $?\n" if $?;
}

# Mounts the root filesystem and writes the configured files. Returns the configuration and what was found in the image:
# the numeric user and groups, the home directory, and why the program cannot be run, if so.
sub prepare_machine {
  my ($userns, $config, $layers) = @_;
  my %words = read_words(read_file($config->{program}) // die "$config->{program}: $!\n");
  mount_image($userns, $layers, !$config->{'keeps-root'});
  mount_volumes($userns, $config, @{$words{volumes}});
  my %found = in_root($userns, sub {
    make_mount_points('/proc', '/dev', '/sys', '/.fly');
    write_files(@{$words{files}});
    my $user = find_user($words{user}[0]);
    if (!$userns && ($user->{uid} || $user->{gid})) {
      print $mark, "runs as root of the machine, because Berth runs as an ordinary user and has no other ids\n";
      $user = { uid => 0, gid => 0, home => $user->{home}, groups => [] };
    }
    make_directory($words{dir}[0]);
    chdir $words{dir}[0] or die "chdir $words{dir}[0]: $!\n";
    become_user($user, 0) if $userns;
    my %env = map { split /=/, $_, 2 } @{$words{env}};
    return (
      uid => [$user->{uid}], gid => [$user->{gid}], groups => $user->{groups}, home => [$user->{home}],
      problem => [find_problem($words{argv}[0], $env{PATH})],
    );
  });
  map_owners($userns, $config->{inside} // 'api/inside', 'root/.fly');
  return { %words, %found };
}

# A root filesystem that is discarded at the end is mounted with "volatile", which skips syncs. Older kernels lack it.
sub mount_image {
  my ($userns, $layers, $is_volatile) = @_;
  my $extra = $userns ? '' : ',userxattr';
  my $lower = map_layers($userns, $layers);
  my $options = "lowerdir=$lower,upperdir=layer/upper,workdir=layer/work$extra";
  my $flags = 2 | 4; # MS_NOSUID, MS_NODEV
  return if $is_volatile && eval { local $SIG{__DIE__}; mount_at('overlay', 'root', 'overlay', $flags, "$options,volatile"); 1 };
  mount_at('overlay', 'root', 'overlay', $flags, $options);
}

# Mounts volumes with their owners mapped to the ids of the box. The mounts end with the mount namespace. A disk image is
# never mounted twice, and the kernel releases it a moment after the previous machine has stopped.
sub mount_volumes {
  my ($userns, $config, @words) = @_;
  for (my $index = 0; my ($kind, $source, $path) = splice @words, 0, 3; $index++) {
    my $target = "root" . (in_root($userns, sub { make_directory($path); return (path => [real_path($path)]) }))[1][0];
    die "refused: a volume cannot be mounted at $path\n" if $target !~ m{^root/.} || $target =~ m{^root/(proc|dev|sys|\.fly)(/|$)};
    if ($kind eq 'directory') {
      map_owners($userns, $source, $target, 1);
      next;
    }
    mkdir $_, 0711 for 'volume', "volume/$index";
    # The lock keeps volume/grow.pl from resizing the image until it is mounted.
    open(my $lock, '<', $source) or die "the volume at $path: $!\n";
    flock($lock, 2) or die "the volume at $path: $!\n";
    wait_for_volume($source);
    system('mount', '-t', 'ext4', '-o', 'loop,nosuid,nodev', $source, "volume/$index") == 0 or die "the volume at $path cannot be mounted\n";
    map_owners($userns, "volume/$index", $target, 1);
    my $staging = "volume/$index\0";
    call('umount2', $staging, 2);
  }
}

sub wait_for_volume {
  my ($source) = @_;
  for (1 .. 500) {
    opendir(my $devices, '/sys/block') or return;
    my @backing = map { read_file("/sys/block/$_/loop/backing_file") // '' } grep { /^loop/ } readdir $devices;
    return if !grep { $_ eq "$source\n" } @backing;
    select undef, undef, undef, 0.02;
  }
  die "a volume is still in use by another machine\n";
}

# Runs the work in a child process as root of the box, with the box's root directory, so that no path of an image leads
# outside. Returns the lists of words that the work returns.
sub in_root {
  my ($userns, $work) = @_;
  pipe(my $out, my $in) or die "pipe: $!\n";
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    # From here on errors go through the pipe, because paths now refer to the image.
    $SIG{__DIE__} = 'DEFAULT';
    my %answer = eval {
      chroot 'root' or die "chroot: $!\n";
      chdir '/' or die "chdir: $!\n";
      if ($userns) {
        call('setns', fileno $userns, $namespace{user});
        become(0);
      }
      umask 022;
      $work->();
    };
    %answer = (failure => [$@ =~ s/\n\z//r]) if $@;
    print $in join("\0", map { ($_, scalar @{$answer{$_}}, @{$answer{$_}}) } keys %answer);
    close $in;
    exit 0;
  }
  close $in;
  local $/;
  my $text = <$out>;
  waitpid $child, 0;
  my %answer = read_words($text =~ s/%/%25/gr);
  die "refused: $answer{failure}[0]\n" if $answer{failure};
  return %answer;
}

# Replaces links and files by directories, because mounting would follow a link.
sub make_mount_points {
  for my $path (@_) {
    unlink $path if -l $path || !-d $path;
    mkdir $path, 0755;
    -d $path && !-l $path or die "the directory $path cannot be made in the image\n";
  }
}

# Makes a directory with its parents. Links of the image are followed but cannot leave it.
sub make_directory {
  my ($path) = @_;
  return if -d $path;
  make_directory($path =~ s{/+[^/]*/*$}{}r || '/');
  mkdir $path, 0755 or die "make the directory $path in the image: $!\n";
}

sub real_path {
  my ($path) = @_;
  chdir $path or die "chdir $path: $!\n";
  return current_directory();
}

# Takes three words for each file: path, mode and content in hexadecimal digits. A "!" before the mode replaces a link of
# the image instead of following it.
sub write_files {
  my @words = @_;
  while (my ($path, $mode, $content) = splice @words, 0, 3) {
    make_directory($path =~ s{/+[^/]*$}{}r || '/');
    unlink $path if $mode =~ s/^!//;
    # O_WRONLY, O_CREAT, O_TRUNC and O_NONBLOCK, so that opening a named pipe does not block.
    sysopen(my $file, $path, 0x1 | 0x40 | 0x200 | 0x800, 0600) or die "write $path in the image: $!\n";
    chmod oct $mode, $file;
    $content = pack 'H*', $content;
    my $written = 0;
    while ($written < length $content) {
      $written += syswrite($file, $content, length($content) - $written, $written) // die "write $path in the image: $!\n";
    }
  }
}

# Returns an exit code and a reason if the program cannot be run.
sub find_problem {
  my ($program, $path) = @_;
  my $denied = 0;
  for my $file (index($program, '/') >= 0 ? $program : map { ($_ eq '' ? '.' : $_) . "/$program" } split /:/, $path, -1) {
    return () if -f $file && -x _;
    $denied ||= -e $file;
  }
  return $denied ? (126, qq(exec: "$program": permission denied)) : (127, qq(exec: "$program": not found));
}

# Runs the program under bwrap, which stays as the init process of the machine and reaps orphans. Signals are sent by the
# host's root, since the program may become any user of the box.
sub run_machine {
  my ($userns, $config, $program) = @_;
  # Reported only now, because the network is being set up for this process in parallel and needs it to exist.
  if (@{$program->{problem}}) {
    my ($code, $reason) = @{$program->{problem}};
    print $mark, $reason, "\n";
    exit $code;
  }
  my ($uid, $gid) = ($program->{uid}[0], $program->{gid}[0]);
  my $base = $config->{uid} // 0; # the first id of the box
  $userns = make_user_namespace($base, $base + $uid) if $userns && $uid != 0;
  open(my $filter, '<', $config->{filter}) or die "$config->{filter}: $!\n";
  my @identity = $userns
    ? ('s6-applyuidgid', '-u', $base + $uid, '-g', $base + $gid, '-G', join(',', map { $base + $_ } @{$program->{groups}}))
    : ();
  my @groups = grep { -d $_->[1] } map { [split / /, $_, 2] } split /\t/, $config->{groups} // '';
  my $options = memory_file(
    $userns ? ('--userns', fileno $userns) : (),
    '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup', $config->{address} || $config->{'shares-network'} ? () : '--unshare-net',
    '--die-with-parent', '--new-session', '--seccomp', fileno $filter,
    '--cap-drop', 'ALL', $uid == 0 ? map { ('--cap-add', "CAP_$_") } capability_names() : (),
    '--hostname', $config->{hostname},
    '--bind', 'root', '/', '--proc', '/proc', device_arguments(),
    '--perms', '0755', '--tmpfs', '/sys', (map { ('--perms', '0755', '--dir', $_) } '/sys/fs', '/sys/fs/cgroup'),
    (map { ('--ro-bind', $_->[1], "/sys/fs/cgroup$_->[0]") } @groups), '--remount-ro', '/sys',
    '--clearenv', '--setenv', 'HOME', $program->{home}[0],
    (map { ('--setenv', split /=/, $_, 2) } @{$program->{env}}),
    '--chdir', $program->{dir}[0],
  );
  open_error_log() if !$config->{'shares-network'};
  give_output($base + $uid, $base + $gid);
  close_on_exec();
  fcntl($_, 2, 0) for grep { $_ } $userns, $filter, $options; # stay open over exec
  # A shell is the smallest program that hands a signal on: bwrap would die of it. With a signal of its own for a stop.
  my $watch = watching(<<'END');
stop() {
  signal=$0 first= program=
  [ -s stopping ] && read -r signal rest < stopping
  read -r first rest < /proc/$bwrap/task/$bwrap/children
  [ -n "$first" ] && read -r program rest < /proc/$first/task/$first/children
  if [ -n "$program" ]; then kill "-$signal" "$program"; else kill -KILL "$bwrap"; fi
}
trap stop TERM
END
  exec '/bin/sh', '-c', $watch, $config->{'stop-signal'}, @identity, 'env', '-i', '--default-signal',
    $config->{bwrap}, '--args', fileno $options, '--', @{$program->{argv}} or die "sh: $!\n";
}

# Passes options to bwrap in memory, because command lines are readable by all users.
sub memory_file {
  my $name = "options\0";
  my $descriptor = call('memfd_create', $name, 0);
  open(my $file, '+<&=', $descriptor) or die "memfd: $!\n";
  my $text = join '', map { "$_\0" } @_;
  syswrite($file, $text) == length $text or die "memfd: $!\n";
  sysseek $file, 0, 0;
  return $file;
}

# Waits for the logger, which starts at the same time. The output of a short program would otherwise be lost when the last
# writer closes the pipe.
sub await_reader {
  my ($pipe) = @_;
  my $flags = 1 | 04000; # O_WRONLY, O_NONBLOCK: fails while the pipe has no reader
  for (1 .. 1000) {
    return if sysopen(my $end, $pipe, $flags);
    select undef, undef, undef, 0.002;
  }
}

# Connects standard error to its own logger.
sub open_error_log {
  -p 'stderr' or system('mkfifo', '-m', '600', 'stderr');
  await_reader('stderr');
  open(STDERR, '+<', 'stderr') or die "stderr: $!\n";
}

# Both outputs belong to the program's user, who may reopen them by name. Nobody else may: they could forge lines.
sub give_output {
  my ($uid, $gid) = @_;
  open(STDIN, '<', '/dev/null');
  for (\*STDOUT, \*STDERR) {
    chown $uid, $gid, $_ if $> == 0;
    chmod 0600, $_;
  }
}

1;
