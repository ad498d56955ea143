# How the program of an image is started in a box: what box-start.pl does for machines instead of what it does for
# sandboxes. The words of the user (arguments, variables, files, places of volumes) come from a file of their own, which
# only the host's root can read, and are never on a command line of the host.
use strict;

our %namespace;
my $mark = "\035"; # what follows in the log is said by us, and not by the program

# What cannot be started is told to whoever waits for it, and whether that is the fault of what was asked for.
sub begin_machine {
  my ($config) = @_;
  my $failed = "$config->{directory}/failed";
  unlink $failed;
  $| = 1;
  $SIG{__DIE__} = sub {
    my ($why) = @_;
    # Whole when it appears: it is read at once.
    rename "$failed.new", $failed if !-e $failed && write_file("$failed.new", $why);
    print $mark, $why =~ s/^refused: //r;
    exit 111;
  };
  my ($uptime) = split /\./, read_file('/proc/uptime');
  write_file('began', "$uptime\n");
  write_file('oom', oom_kills($config->{'memory-group'}) . "\n");
  renew_layer($config);
}

sub oom_kills {
  my ($group) = @_;
  return 0 if !defined $group;
  my $counts = read_file("$group/memory.events") // read_file("$group/memory.oom_control") // '';
  return $counts =~ /^oom_kill (\d+)/m ? $1 : 0;
}

# What an earlier life wrote is gone, also when it ended without a chance to clean up.
sub renew_layer {
  my ($config) = @_;
  if (-e 'layer' && !$config->{'keeps-root'}) {
    mkdir $config->{trash}, 0700;
    my ($id) = $config->{directory} =~ m{([^/]+)$};
    rename 'layer', "$config->{trash}/$id-$$-" . time or die "remove what an earlier life wrote: $!\n";
  }
  my $limit = $config->{'root-limit'};
  if (!-d 'layer/work') {
    quietly(qw(btrfs subvolume create layer)) if ($limit // 'none') ne 'none' && !-e 'layer';
    for (['layer', 0711], ['layer/upper', 0755], ['layer/work', 0700]) {
      my ($directory, $mode) = @$_;
      mkdir $directory, $mode or -d $directory or die "$directory: $!\n";
    }
    chown $config->{uid}, $config->{uid}, 'layer/upper' if defined $config->{uid};
  }
  # One that was kept from before it had a size, and so is none of its own, stays without.
  quietly('btrfs', 'qgroup', 'limit', $limit, 'layer') if defined $limit && is_subvolume('layer');
}

# On btrfs, which alone has limits: the first file of each is numbered so.
sub is_subvolume {
  my ($directory) = @_;
  return ((stat $directory)[1] // 0) == 256;
}

# What it says is nothing for the log of the machine.
sub quietly {
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    open(STDOUT, '>', '/dev/null');
    open(STDERR, '>', '/dev/null');
    exec @_ or exit 127;
  }
  waitpid $child, 0;
  die "$_[0] $_[1] ended with $?\n" if $?;
}

# Its root filesystem, with everything in it that the program needs. The answer says who it is and what it runs.
sub prepare_machine {
  my ($userns, $config, $layers) = @_;
  my %words = read_words(read_file($config->{program}) // die "$config->{program}: $!\n");
  mount_image($userns, $layers, !$config->{'keeps-root'});
  mount_volumes($userns, $config, @{$words{volumes}});
  my %found = in_root($userns, sub {
    make_places('/proc', '/dev', '/sys', '/.fly');
    write_files(@{$words{files}});
    my $user = find_user($words{user}[0]);
    if (!$userns && ($user->{uid} || $user->{gid})) {
      print $mark, "runs as root of the machine, because an ordinary user has no other to give\n";
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
  map_owners($userns, 'api/inside', 'root/.fly');
  return { %words, %found };
}

# What is thrown away at the end need not reach the disk; older kernels do not know how to say that.
sub mount_image {
  my ($userns, $layers, $is_volatile) = @_;
  my $extra = $userns ? '' : ',userxattr';
  my $lower = map_layers($userns, $layers);
  my $options = "lowerdir=$lower,upperdir=layer/upper,workdir=layer/work$extra";
  my $quiet = 2 | 4; # nosuid, nodev
  return if $is_volatile && eval { local $SIG{__DIE__}; mount_at('overlay', 'root', 'overlay', $quiet, "$options,volatile"); 1 };
  mount_at('overlay', 'root', 'overlay', $quiet, $options);
}

# Volumes show their files as those of the box, whichever box it is, and go with its mount namespace. An image is never
# mounted twice: the kernel takes a moment to let go of it when the last machine has ended.
sub mount_volumes {
  my ($userns, $config, @words) = @_;
  for (my $at = 0; my ($kind, $source, $path) = splice @words, 0, 3; $at++) {
    my $place = "root" . (in_root($userns, sub { make_directory($path); return (path => [real_path($path)]) }))[1][0];
    die "refused: a volume cannot be mounted at $path\n" if $place !~ m{^root/.} || $place =~ m{^root/(proc|dev|sys|\.fly)(/|$)};
    if ($kind eq 'directory') {
      map_owners($userns, $source, $place, 1);
      next;
    }
    mkdir $_, 0711 for 'volume', "volume/$at";
    # Nobody changes its size until it is mounted.
    open(my $lock, '<', $source) or die "the volume at $path: $!\n";
    flock($lock, 2) or die "the volume at $path: $!\n";
    wait_for_volume($source);
    system('mount', '-t', 'ext4', '-o', 'loop,nosuid,nodev', $source, "volume/$at") == 0 or die "the volume at $path cannot be mounted\n";
    map_owners($userns, "volume/$at", $place, 1);
    my $staging = "volume/$at\0";
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

# Does something as root of the box, in its root, so that no path of an image leads out of it. The answer is lists of
# words by name.
sub in_root {
  my ($userns, $work) = @_;
  pipe(my $out, my $in) or die "pipe: $!\n";
  my $child = fork // die "fork: $!\n";
  if (!$child) {
    # Whatever is said from here on goes through the pipe: names of files are those of the image.
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

# What is mounted over must not be a link, which would be followed on the way there.
sub make_places {
  for my $place (@_) {
    unlink $place if -l $place || !-d $place;
    mkdir $place, 0755;
    -d $place && !-l $place or die "the image has no place for $place\n";
  }
}

# With its parents. Links on the way are those of the image and stay in it.
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

# Three words each: path, mode, content in hexadecimal digits. Those that replace a link of the image come with a sign before the mode.
sub write_files {
  my @words = @_;
  while (my ($path, $mode, $content) = splice @words, 0, 3) {
    make_directory($path =~ s{/+[^/]*$}{}r || '/');
    unlink $path if $mode =~ s/^!//;
    # Without waiting for the other end, if there is a pipe.
    sysopen(my $file, $path, 0x1 | 0x40 | 0x200 | 0x800, 0600) or die "write $path in the image: $!\n";
    chmod oct $mode, $file;
    $content = pack 'H*', $content;
    my $at = 0;
    while ($at < length $content) {
      $at += syswrite($file, $content, length($content) - $at, $at) // die "write $path in the image: $!\n";
    }
  }
}

# Why the program cannot be run, if so: a code and a sentence.
sub find_problem {
  my ($program, $path) = @_;
  my $denied = 0;
  for my $file (index($program, '/') >= 0 ? $program : map { ($_ eq '' ? '.' : $_) . "/$program" } split /:/, $path, -1) {
    return () if -f $file && -x _;
    $denied ||= -e $file;
  }
  return $denied ? (126, qq(exec: "$program": permission denied)) : (127, qq(exec: "$program": not found));
}

# bwrap stays as the first process and buries what others leave behind. Who may signal the program is the host's root,
# since the program may become any user of the box.
sub run_machine {
  my ($userns, $config, $program) = @_;
  # Told only now: the network is being set up for this process, and would be without one.
  if (@{$program->{problem}}) {
    my ($code, $why) = @{$program->{problem}};
    print $mark, $why, "\n";
    exit $code;
  }
  my ($uid, $gid) = ($program->{uid}[0], $program->{gid}[0]);
  my $first = $config->{uid} // 0;
  $userns = make_user_namespace($first, $first + $uid) if $userns && $uid != 0;
  open(my $filter, '<', $config->{filter}) or die "$config->{filter}: $!\n";
  my @identity = $userns
    ? ('s6-applyuidgid', '-u', $first + $uid, '-g', $first + $gid, '-G', join(',', map { $first + $_ } @{$program->{groups}}))
    : ();
  my @groups = grep { -d $_->[1] } map { [split / /, $_, 2] } split /\t/, $config->{groups} // '';
  my $options = memory_file(
    $userns ? ('--userns', fileno $userns) : (),
    '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup', $config->{address} ? () : '--unshare-net',
    '--die-with-parent', '--new-session', '--seccomp', fileno $filter,
    '--cap-drop', 'ALL', $uid == 0 ? map { ('--cap-add', "CAP_$_") } capability_names() : (),
    '--hostname', $config->{hostname},
    '--bind', 'root', '/', '--proc', '/proc', '--dev', '/dev', '--perms', '1777', '--tmpfs', '/dev/shm',
    '--perms', '0755', '--tmpfs', '/sys', (map { ('--perms', '0755', '--dir', $_) } '/sys/fs', '/sys/fs/cgroup'), (map { ('--ro-bind', $_->[1], "/sys/fs/cgroup$_->[0]") } @groups), '--remount-ro', '/sys',
    '--clearenv', '--setenv', 'HOME', $program->{home}[0],
    (map { ('--setenv', split /=/, $_, 2) } @{$program->{env}}),
    '--chdir', $program->{dir}[0],
  );
  open_output($first + $uid, $first + $gid);
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

# Words for bwrap that nobody else is to read.
sub memory_file {
  my $name = "options\0";
  my $descriptor = call('memfd_create', $name, 0);
  open(my $file, '+<&=', $descriptor) or die "memfd: $!\n";
  my $text = join '', map { "$_\0" } @_;
  syswrite($file, $text) == length $text or die "memfd: $!\n";
  sysseek $file, 0, 0;
  return $file;
}

# The logger is started at the same time. What a short program says while nobody else has the pipe open would be gone
# with it.
sub await_reader {
  my ($pipe) = @_;
  my $write_at_once = 1 | 04000;
  for (1 .. 1000) {
    return if sysopen(my $end, $pipe, $write_at_once);
    select undef, undef, undef, 0.002;
  }
}

# The error output has a log of its own. Both belong to the program, which may open them again by name.
sub open_output {
  my ($uid, $gid) = @_;
  open(STDIN, '<', '/dev/null');
  -p 'stderr' or system('mkfifo', '-m', '600', 'stderr');
  await_reader('stderr');
  open(STDERR, '+<', 'stderr') or die "stderr: $!\n";
  for (\*STDOUT, \*STDERR) {
    chown $uid, $gid, $_ if $> == 0;
    chmod 0622, $_;
  }
}

1;
