# Library of box/start.pl: runs the containers of a machine. Each has its own root filesystem and pid namespace in a process
# tree below this one, and all share the network namespace and the control groups. This process stays outside of them, as
# the host's root, starts them in the order of their dependencies and applies their restart policies. It reads nothing that
# they write; their output goes through processes with the privileges of the box.
use strict;

our %namespace;
my $mark = "\035";      # precedes text in the log that comes from the platform and not from the program
my $name_mark = "\034"; # surrounds the name of the container at the start of each line of the log
my $max_line = 16384;   # bytes; longer lines are split

my ($userns, $config, @containers, %by_name);
my ($platform_log, $control, @writers, $wake_out, $wake_in);
my ($stopping, $last_exit, $oom_kills, $shown, $id) = (undef, 0, 0, '');
my $received = '';

sub run_containers {
  ($userns, $config) = @_;
  ($id) = $config->{directory} =~ m{([^/]+)$};
  @containers = map { load_container($_) } @{$config->{container}};
  %by_name = map { $_->{name} => $_ } @containers;
  $last_exit = (split ' ', (split /\n/, read_file('exits') // '')[-1] // '0')[0];
  $oom_kills = oom_kills($config->{'memory-group'});
  share_loopback() if !$config->{address};
  open_control();
  start_log_writers();
  # The kernel picks this process last when the machine runs out of memory: all containers end with it.
  write_file('/proc/self/oom_score_adj', '-900') if $> == 0;
  until (is_over()) {
    reap();
    read_control();
    my $before = phases();
    $stopping ? stop_next() : start_next();
    show_states();
    # One container that starts or ends can be what another one waits for.
    wait_for_news() if phases() eq $before && !is_over();
  }
  end_log_writers();
  my ($failed) = grep { $_ } map { $_->{code} } @containers;
  exit($failed // 0);
}

sub load_container {
  my ($name) = @_;
  my %own = read_config("container/$name/box.conf");
  my ($policy, $max_retries) = split / /, $own{restart};
  return {
    name => $name, conf => \%own, policy => $policy, max_retries => $max_retries, phase => 'pending', run => 0, pid => 0,
    needs => [map { my ($other, $condition) = split / /; { name => $other, condition => $condition } } @{$own{depends}}],
    health => '', restarts => 0, count => 0, since => 0, short => 0, began => 0, at => 0,
  };
}

sub now { return read_clock(1) }

# Without a network of their own the containers have loopback.
sub share_loopback {
  call('unshare', $namespace{net});
  bring_up('lo');
}

# --- messages

# The driver writes lines to the pipe. Signals arrive through a pipe too, so that none is missed.
sub open_control {
  -p 'control' or system('mkfifo', '-m', '600', 'control');
  sysopen($control, 'control', 02 | 04000) or die "control: $!\n"; # O_RDWR, O_NONBLOCK
  pipe($wake_out, $wake_in) or die "pipe: $!\n";
  fcntl $_, 4, 04000 for $wake_out, $wake_in; # F_SETFL, O_NONBLOCK
  $SIG{CHLD} = sub { syswrite $wake_in, 'c' };
  $SIG{TERM} = sub { begin_stop(); syswrite $wake_in, 't' };
}

sub read_control {
  sysread $wake_out, my $signals, 4096;
  while (sysread $control, $received, 4096, length $received) { last if length $received > 65536 }
  while ($received =~ s/^([^\n]*)\n//) {
    my ($name, $run, $health) = $1 =~ /^health (\S+) (\d+) (healthy|unhealthy)$/ or next;
    my $c = $by_name{$name} or next;
    set_health($c, $health) if $c->{run} == $run && $c->{phase} eq 'running';
  }
}

sub set_health {
  my ($c, $health) = @_;
  $c->{health} = $health;
  return if $health ne 'unhealthy' || !$c->{conf}{'stops-unhealthy'};
  $c->{is_unhealthy} = 1;
  note($c, 'is unhealthy and is stopped');
  stop_container($c);
}

sub wait_for_news {
  my @times = grep { $_ } map { ($_->{restart_at}, $_->{kill_at}) } @containers;
  push @times, now() + 0.02 if grep { $_->{phase} eq 'starting' } @containers;
  my ($next) = sort { $a <=> $b } @times;
  my $rest = defined $next ? $next - now() : undef;
  $rest = 0 if defined $rest && $rest < 0;
  my $read = '';
  vec($read, fileno $_, 1) = 1 for $wake_out, $control;
  select $read, undef, undef, $rest;
}

# Shows what the driver reports, and tells the control plane that something has changed.
sub show_states {
  my $text = join '', map {
    join(' ', $_->{name}, $_->{phase}, $_->{run}, int($_->{at} * 1000), $_->{health} || '-', $_->{code} // '-', $_->{restarts}) . "\n"
  } @containers;
  return if $text eq $shown;
  write_file('containers.new', $text) && rename('containers.new', 'containers') or return;
  $shown = $text;
  write_file("$config->{changes}/$id", "$last_exit\n");
}

# --- starting

sub start_next {
  for my $c (@containers) {
    $c->{phase} = 'running' if $c->{phase} eq 'starting' && init_of($c->{pid}, $config->{uid} // $>, 'bwrap');
    $c->{has_started} = 1 if $c->{phase} eq 'running';
    if ($c->{kill_at} && now() >= $c->{kill_at}) { kill_container($c) }
    if ($c->{restart_at} && now() >= $c->{restart_at}) { start_container($c) }
    next if $c->{phase} ne 'pending';
    my @open = grep { !is_fulfilled($_) } @{$c->{needs}};
    if (!@open) { start_container($c) }
    elsif (my ($lost) = grep { $by_name{$_->{name}}{phase} eq 'stopped' } @open) {
      $c->{phase} = 'stopped';
      note($c, "is not started: the container $lost->{name} ended before it was " . ($lost->{condition} eq 'exited_successfully' ? 'successful' : $lost->{condition}));
    }
  }
}

sub is_fulfilled {
  my ($need) = @_;
  my $other = $by_name{$need->{name}};
  return $other->{has_succeeded} if $need->{condition} eq 'exited_successfully';
  return $other->{phase} eq 'running' && $other->{health} eq 'healthy' if $need->{condition} eq 'healthy';
  return $other->{has_started};
}

sub start_container {
  my ($c) = @_;
  delete @$c{qw(restart_at kill_at is_unhealthy)};
  my $supervisor = $$;
  my $pid = fork;
  if (!defined $pid) {
    $c->{restart_at} = now() + 1;
    $c->{phase} = 'restarting';
    return;
  }
  enter_container($c, $supervisor) if !$pid;
  @$c{qw(pid phase health began at)} = ($pid, 'starting', '', now(), read_clock(0));
  $c->{run}++;
}

# Becomes the container. From here on errors go to its log and end it.
sub enter_container {
  my ($c, $supervisor) = @_;
  $SIG{$_} = 'DEFAULT' for 'CHLD', 'TERM';
  open(STDOUT, '>&', $c->{stdout}) && open(STDERR, '>&', $c->{stderr}) or exit 111;
  $SIG{__DIE__} = sub {
    print $mark, $_[0] =~ s/^refused: //r;
    exit 111;
  };
  call('prctl', 1, 9, 0, 0, 0); # PR_SET_PDEATHSIG: killed when the supervisor dies, which may have happened already
  exit 111 if getppid != $supervisor;
  write_file('/proc/self/oom_score_adj', '0') if $> == 0;
  $ENV{BERTH_CONTAINER} = $c->{name}; # marks the process for enter.pl
  my $own = $c->{conf};
  my $place = current_directory();
  # Files can only be renamed to the trash by their paths on the host; see enter_reachable.
  chdir $own->{directory} or die "$own->{directory}: $!\n";
  unlink 'stopping';
  renew_layer($own);
  chdir "$place/container/$c->{name}" or die "container/$c->{name}: $!\n";
  call('unshare', $namespace{mnt});
  mount_terminals($own->{terminals});
  run_machine($userns, $own, prepare_machine($userns, $own, $own->{layer}));
}

# --- ending

sub reap {
  while ((my $pid = waitpid -1, 1) > 0) { # WNOHANG
    my $status = $?;
    my ($c) = grep { $_->{pid} == $pid } @containers;
    if ($c) { take_exit($c, $status) }
    elsif (grep { $_ == $pid } @writers) { die "the writer of the log ended\n" }
  }
}

sub take_exit {
  my ($c, $status) = @_;
  my ($code, $signal) = ($status >> 8, $status & 127);
  if ($signal) { $code = 128 + $signal } elsif ($code > 128 && $code <= 192) { $signal = $code - 128 }
  @$c{qw(pid code health)} = (0, $code, '');
  delete $c->{kill_at};
  $c->{has_started} = 1 if $code != 111;
  $c->{has_succeeded} = 1 if $code == 0;
  my $delay = $stopping ? undef : restart_delay($c);
  my $kills = oom_kills($config->{'memory-group'});
  my $oom = $code && !$stopping && $kills > $oom_kills ? 1 : 0;
  $oom_kills = $kills;
  $c->{phase} = defined $delay ? 'restarting' : 'stopped';
  if (defined $delay) {
    $c->{restart_at} = now() + $delay;
    $c->{restarts}++;
  }
  record_exit(int(read_clock(0) * 1000), $code, $signal, $oom, $stopping ? 1 : 0, defined $delay ? 1 : 0, $delay // 0, $c->{name});
  note($c, "exited with code $code" . ($oom ? ', out of memory' : '') . ($delay ? ", starts again in $delay s" : ''));
}

# Returns undef when the restart policy does not start it again. The same rules as in finish.sh.
sub restart_delay {
  my ($c) = @_;
  @$c{qw(count since)} = (0, now()) if now() - $c->{since} >= 300;
  my $is_steady = now() - $c->{began} >= 10;
  $c->{short} = 0 if $is_steady;
  my $has_failed = $c->{code} || $c->{is_unhealthy};
  return undef if !($c->{policy} eq 'always' || $c->{policy} eq 'on-failure' && $has_failed && $c->{count} < $c->{max_retries});
  $c->{count}++;
  return 0 if $is_steady && $c->{policy} eq 'always';
  return (1, 2, 4, 8, 16)[$c->{short}++] // 30;
}

# In the file and the form of finish.sh, with the name of the container.
sub record_exit {
  my @fields = (++$last_exit, @_);
  my @lines = split /\n/, read_file('exits') // '';
  push @lines, "@fields";
  splice @lines, 0, @lines - 50 if @lines > 100;
  write_file('exits.next', join '', map { "$_\n" } @lines) && rename 'exits.next', 'exits';
}

# A stop by the driver leaves in the file its signal, and whether containers get that one instead of their own.
sub begin_stop {
  return if $stopping;
  my ($signal, $is_requested) = split ' ', read_file('stopping') // '';
  $stopping = { signal => $is_requested ? $signal : undef };
}

# Stops the containers that no other one that runs depends on.
sub stop_next {
  for my $c (@containers) {
    delete $c->{restart_at};
    $c->{phase} = 'stopped' if $c->{phase} eq 'pending' || $c->{phase} eq 'restarting';
  }
  for my $c (grep { $_->{pid} } @containers) {
    if ($c->{kill_at}) {
      kill_container($c) if now() >= $c->{kill_at};
      next;
    }
    my @above = grep { my $other = $_; $other->{pid} && grep { $_->{name} eq $c->{name} } @{$other->{needs}} } @containers;
    stop_container($c) if !@above;
  }
}

# The shell that waits for bwrap passes the signal on.
sub stop_container {
  my ($c) = @_;
  my $signal = $stopping ? $stopping->{signal} : undef;
  write_file("container/$c->{name}/stopping", "$signal\n") if defined $signal;
  kill 'TERM', $c->{pid};
  $c->{phase} = 'stopping';
  $c->{kill_at} = now() + $c->{conf}{'stop-ms'} / 1000;
}

# Kills the first process of its pid namespace, so that the shell ends after all other processes. Repeated until it has.
sub kill_container {
  my ($c) = @_;
  kill 'KILL', init_of($c->{pid}, $config->{uid} // $>, 'bwrap') || child_of($c->{pid}) || $c->{pid};
  $c->{kill_at} = now() + 0.5;
}

sub phases { return join ' ', map { $_->{phase} } @containers }

sub is_over { return !grep { $_->{phase} ne 'stopped' } @containers }

# --- the log

# One process for each stream reads the output of all containers and marks each line with the name.
sub start_log_writers {
  open_error_log();
  pipe(my $notes, $platform_log) or die "pipe: $!\n";
  my %sources = (stdout => [[$notes, '']], stderr => []);
  for my $c (@containers) {
    for my $stream ('stdout', 'stderr') {
      pipe(my $out, $c->{$stream}) or die "pipe: $!\n";
      push @{$sources{$stream}}, [$out, "$name_mark$c->{name}$name_mark"];
    }
  }
  @writers = map { start_log_writer($_, \%sources) } 'stdout', 'stderr';
  fcntl $platform_log, 4, 04000; # a message is dropped when the log is far behind
  close $_->[0] for map { @$_ } values %sources;
}

sub start_log_writer {
  my ($stream, $sources) = @_;
  my $pid = fork // die "fork: $!\n";
  return $pid if $pid;
  $SIG{CHLD} = 'DEFAULT';
  $SIG{TERM} = 'IGNORE'; # ends when the last container has
  $SIG{__DIE__} = 'DEFAULT';
  close $_ for $platform_log, $control, $wake_out, $wake_in, map { ($_->{stdout}, $_->{stderr}) } @containers;
  close $_->[0] for map { @{$sources->{$_}} } grep { $_ ne $stream } keys %$sources;
  become($config->{uid}) if defined $config->{uid};
  write_lines($stream eq 'stdout' ? \*STDOUT : \*STDERR, @{$sources->{$stream}});
  exit 0;
}

# Blocks while the logger does, which slows down the containers of this machine alone.
sub write_lines {
  my ($log, @sources) = @_;
  my @open = map { { from => $_->[0], prefix => $_->[1], rest => '' } } @sources;
  while (@open) {
    my $read = '';
    vec($read, fileno $_->{from}, 1) = 1 for @open;
    next if select($read, undef, undef, undef) < 0;
    for my $source (grep { vec($read, fileno $_->{from}, 1) } @open) {
      my $got = sysread $source->{from}, $source->{rest}, 65536, length $source->{rest};
      next if !defined $got && $! == 4; # EINTR
      $source->{has_ended} = 1 if !$got;
      my $lines = '';
      $lines .= "$source->{prefix}$1\n" while $source->{rest} =~ s/^([^\n]{0,$max_line})\n// || length $source->{rest} > $max_line && $source->{rest} =~ s/^([^\n]{$max_line})//;
      $lines .= "$source->{prefix}$source->{rest}\n" if $source->{has_ended} && $source->{rest} ne '';
      for (my $written = 0; $written < length $lines;) {
        $written += syswrite($log, $lines, length($lines) - $written, $written) // ($! == 4 ? 0 : exit 1);
      }
    }
    @open = grep { !$_->{has_ended} } @open;
  }
}

sub note {
  my ($c, $text) = @_;
  syswrite $platform_log, "$name_mark$c->{name}$name_mark$mark$text\n";
}

# Closes the last ends for writing, and waits until everything is written.
sub end_log_writers {
  $SIG{CHLD} = 'DEFAULT';
  close $_ for $platform_log, map { ($_->{stdout}, $_->{stderr}) } @containers;
  waitpid $_, 0 for @writers;
}

1;
