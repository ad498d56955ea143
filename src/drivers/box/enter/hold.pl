# Holds the command of a session: its terminal or pipes, its latest output and its exit code. It is in the box, with the
# privileges of root there and outside of its pid namespace, so processes of the box can neither see nor signal it. The
# platform talks to it through descriptor 3, and through a Unix socket when that connection is lost. Both directions carry
# frames: a letter, a length, and that many bytes. See session.ts.
use strict;

our (%request, $end_of_box);

my $max_scrollback = 256 << 10; # enough to redraw a screen many times
my $max_unsent = 256 << 10;     # the command waits while the platform is this far behind
my $max_frame = 1 << 20;
my $max_pipe = 1 << 20;         # far more than pipes and terminals can hold
my $piece = 65536;
my $kill_after = 5;             # seconds between SIGTERM and SIGKILL
my $keep = 3600;                # seconds for which the exit code is kept for the platform
my $farewell = 0.5;             # seconds for the rest of the output after the box has ended
my %retry = (first => 0.002, most => 0.1);
my ($again, $interrupted) = (11, 4); # EAGAIN, EINTR

my ($limit, $is_terminal, $facts, $size);
my ($listener, $connection);
my ($received, $unsent) = ('', '');
my (@scrollback, $scrollback_bytes);
my (@sources, $sink, $slave, @of_command);
my ($input, $input_ends, $retry_at, $retry_after) = ('', 0, undef, $retry{first});
my ($command, $program, $last_output) = (0, '', 0);
my ($exit_code, $is_reported, $is_done, $late_bytes);
my ($disconnected_at, $kill_at, $quit_at, $is_stopped);

# Listens at a path of the host, before the box is entered.
sub begin_session {
  ($connection) = @_;
  my ($path, $milliseconds, $terminal, $columns, $rows, $text) = @{$request{session}};
  ($is_terminal, $facts, $size) = ($terminal, $text, [$columns, $rows]);
  $limit = $milliseconds / 1000 if $milliseconds ne '';
  open(STDIN, '<', '/dev/null') && open(STDOUT, '>', '/dev/null') && open(STDERR, '>', '/dev/null') or refuse("/dev/null: $!");
  socket($listener, 1, 1, 0) && bind($listener, pack 'S a*', 1, $path) && listen($listener, 8) or refuse("listen: $!");
  without_waiting($listener);
  $end_of_box = watch_box(%request);
  refuse(exists $request{user} ? 'the machine is not running' : 'the sandbox is not running') if $end_of_box < 0 && $request{way}[0] ne 'none';
}

sub without_waiting {
  my ($handle) = @_;
  fcntl $handle, 4, 04000; # F_SETFL, O_NONBLOCK
}

# Reports that the command could not be started.
sub fail_session {
  my ($why) = @_;
  $SIG{PIPE} = 'IGNORE';
  fcntl $connection, 4, 0;
  syswrite $connection, frame($is_terminal ? 1 : 2, "$why\n") . frame('x', pack 'C', 126);
  exit 0;
}

# Makes the terminal or the pipes of the command. A terminal belongs to the box, so that it has a name there.
sub open_streams {
  call('prctl', 4, 0, 0, 0, 0); # PR_SET_DUMPABLE: the box cannot take descriptors from the child before it executes
  if ($is_terminal) { open_terminal() } else { open_pipes() }
  without_waiting($_) for $sink, map { $_->{handle} } @sources;
}

sub open_terminal {
  my $name = $request{way}[0] eq 'none' ? '/dev/ptmx' : '/dev/pts/ptmx';
  sysopen($sink, $name, 02 | 0400 | 04000) or refuse("no terminal is left: $!"); # O_RDWR, O_NOCTTY, O_NONBLOCK
  -c $sink && (stat _)[6] == 0x502 or refuse("$name is not the device for new terminals");
  my $unlocked = pack 'i', 0;
  ioctl($sink, 0x40045431, $unlocked) or refuse("unlock the terminal: $!"); # TIOCSPTLCK
  resize(@$size);
  my $descriptor = ioctl($sink, 0x5441, 02 | 0400) // refuse("open the terminal: $!"); # TIOCGPTPEER
  # Kept open while the command runs, so that reading never fails for lack of a process that has it open.
  open($slave, '+<&=', $descriptor + 0) or refuse("open the terminal: $!");
  @of_command = ($slave) x 3;
  @sources = ({ handle => $sink, stream => 1 });
}

sub open_pipes {
  my ($stdin, $out, $stdout, $err, $stderr);
  pipe($stdin, $sink) && pipe($out, $stdout) && pipe($err, $stderr) or refuse("pipe: $!");
  @of_command = ($stdin, $stdout, $stderr);
  @sources = ({ handle => $out, stream => 1 }, { handle => $err, stream => 2 });
}

# To be called by the command, in a session of its own.
sub use_streams {
  open(STDIN, '<&', $of_command[0]) && open(STDOUT, '>&', $of_command[1]) && open(STDERR, '>&', $of_command[2]) or exit 126;
  ioctl(STDIN, 0x540e, 0) if $is_terminal; # TIOCSCTTY
  close $_ for $listener, $connection, $sink, map { $_->{handle} } @sources;
}

# Returns when nothing is left to do.
sub hold_session {
  ($command, $program) = @_;
  @of_command = ();
  $SIG{PIPE} = 'IGNORE';
  without_waiting($connection);
  my $end_of_command = call('pidfd_open', $command, 0);
  greet();
  send_pending();
  until (is_over()) {
    my ($read, $write) = ('', '');
    for my $descriptor (grep { defined && $_ >= 0 } $end_of_box, $end_of_command) { vec($read, $descriptor, 1) = 1 }
    for my $handle (grep { defined } $listener, $connection) { vec($read, fileno $handle, 1) = 1 }
    for my $source (readable_sources()) { vec($read, fileno $source->{handle}, 1) = 1 }
    vec($write, fileno $connection, 1) = 1 if $connection && $unsent ne '';
    vec($write, fileno $sink, 1) = 1 if $sink && $input ne '' && !$is_terminal;
    next if select($read, $write, undef, waiting_time()) < 0;
    my $is_ready = sub { defined $_[0] && vec($_[1], ref $_[0] ? fileno $_[0] : $_[0], 1) };
    if (defined $end_of_box && $end_of_box >= 0 && $is_ready->($end_of_box, $read)) {
      $end_of_box = undef;
      $quit_at = now() + $farewell;
      forward_signal('KILL') if !defined $exit_code;
    }
    if ($is_ready->($end_of_command, $read)) {
      $end_of_command = call('close', $end_of_command) || undef;
      end_command(reap());
    }
    my $has_caller = $is_ready->($listener, $read);
    read_frames() if $is_ready->($connection, $read);
    read_source($_) for grep { $_->{handle} && vec($read, fileno $_->{handle}, 1) } @sources;
    write_input() if $input ne '' || $input_ends;
    watch_time();
    report_exit() if defined $exit_code && !$is_reported;
    take_caller() if $has_caller;
    send_pending() if $connection && $unsent ne '';
  }
}

sub is_over {
  return 1 if defined $quit_at && now() >= $quit_at;
  return 1 if !defined $end_of_box && $is_reported && $unsent eq '';
  return $is_done && !grep { $_->{handle} } @sources;
}

sub now { return read_clock(1) }

sub waiting_time {
  my @times = grep { defined } $kill_at, $quit_at, $retry_at;
  push @times, $disconnected_at + $limit if is_limited();
  my ($next) = sort { $a <=> $b } @times;
  return undef if !defined $next;
  my $rest = $next - now();
  return $rest > 0 ? $rest : 0;
}

sub is_limited { return defined $limit && defined $disconnected_at && !$is_stopped && !defined $exit_code }

sub watch_time {
  my $now = now();
  if (is_limited() && $now >= $disconnected_at + $limit) {
    $is_stopped = 1;
    $kill_at = $now + $kill_after;
    forward_signal('TERM');
  }
  if (defined $kill_at && $now >= $kill_at) {
    $kill_at = undef;
    forward_signal('KILL') if !defined $exit_code;
  }
}

# --- output

sub readable_sources {
  return () if $connection && length $unsent >= $max_unsent;
  return grep { $_->{handle} } @sources;
}

# Returns false when there was nothing to read.
sub read_source {
  my ($source) = @_;
  my $got = sysread($source->{handle}, my $data, $piece);
  if ($got) {
    take_output($source->{stream}, $data) if !$is_reported;
    return 1;
  }
  return $! == $interrupted if !defined $got && ($! == $again || $! == $interrupted);
  $source->{handle} = undef;
  return 0;
}

sub take_output {
  my ($stream, $data) = @_;
  $last_output = read_clock(0);
  $late_bytes += length $data if defined $exit_code;
  $unsent .= frame($stream, $data) if $connection;
  if (@scrollback && $scrollback[-1][0] == $stream && length $scrollback[-1][1] < $piece) { $scrollback[-1][1] .= $data }
  else { push @scrollback, [$stream, $data] }
  $scrollback_bytes += length $data;
  while ((my $surplus = $scrollback_bytes - $max_scrollback) > 0) {
    my $oldest = length $scrollback[0][1];
    $scrollback_bytes -= $oldest > $surplus ? $surplus : $oldest;
    if ($oldest > $surplus) { substr $scrollback[0][1], 0, $surplus, '' } else { shift @scrollback }
  }
}

sub end_command {
  ($exit_code) = @_;
  ($slave, $kill_at, $late_bytes) = (undef, undef, 0);
  drop_input();
  $sink = undef;
  $quit_at //= now() + $keep;
}

# Everything that the command wrote is reported before its exit, even when another process holds its pipes open.
sub report_exit {
  for my $source (readable_sources()) {
    while ($source->{handle} && $late_bytes <= $max_pipe && length $unsent < $max_unsent) {
      last if !read_source($source);
    }
  }
  return if $connection && length $unsent >= $max_unsent;
  $is_reported = 1;
  $unsent .= frame('x', pack 'C', $exit_code) if $connection;
  # Processes in the background must not block on a full pipe, so those are read until nobody has them open.
  @sources = () if $is_terminal;
}

# --- input

sub write_input {
  return if defined $retry_at && now() < $retry_at;
  $retry_at = undef;
  my $before = length $input;
  while ($sink && $input ne '') {
    my $done = syswrite $sink, $input, $is_terminal ? 4096 : $piece;
    if ($done) {
      substr $input, 0, $done, '';
      $retry_after = $retry{first};
      next;
    }
    next if !defined $done && $! == $interrupted;
    if (defined $done || $! == $again) {
      wait_for_terminal() if $is_terminal;
      last;
    }
    $sink = undef;
  }
  $input = '' if !$sink;
  acknowledge($before - length $input);
  $sink = undef if $input eq '' && $input_ends && !$is_terminal;
}

# A terminal can be reported as writable and take nothing.
sub wait_for_terminal {
  $retry_at = now() + $retry_after;
  $retry_after = $retry_after * 2 < $retry{most} ? $retry_after * 2 : $retry{most};
}

sub drop_input {
  my $dropped = length $input;
  ($input, $retry_at) = ('', undef);
  acknowledge($dropped);
}

sub acknowledge {
  my ($bytes) = @_;
  $unsent .= frame('c', pack 'N', $bytes) if $bytes && $connection;
}

sub resize {
  my ($columns, $rows) = @_;
  $size = [$columns, $rows];
  my $window = pack 'S4', $rows, $columns, 0, 0;
  ioctl($sink, 0x5414, $window) if $is_terminal && $sink; # TIOCSWINSZ
}

# --- the platform

sub frame {
  my ($kind, $data) = @_;
  return pack('a N', $kind, length $data) . $data;
}

sub greet {
  my $described = join "\0", $command, $program, @$size, int($last_output * 1000), length $input, $facts;
  $unsent = frame('h', $described) . join '', map { frame(@$_) } @scrollback;
  $unsent .= frame('x', pack 'C', $exit_code) if $is_reported;
  $unsent .= frame('r', '');
}

# The newest connection counts.
sub take_caller {
  $listener && accept(my $caller, $listener) or return;
  lose_connection();
  $connection = $caller;
  without_waiting($connection);
  greet();
}

sub lose_connection {
  close $connection if $connection; # descriptor 3 has another reference
  ($connection, $received, $unsent) = (undef, '', '');
  $disconnected_at //= now();
}

sub send_pending {
  my $done = syswrite $connection, $unsent, $piece * 4;
  if ($done) { substr $unsent, 0, $done, '' }
  elsif (!defined $done && $! != $again && $! != $interrupted) { lose_connection() }
}

sub read_frames {
  my $got = sysread $connection, $received, $piece, length $received;
  return if !defined $got && ($! == $again || $! == $interrupted);
  return lose_connection() if !$got;
  while (length $received >= 5) {
    my ($kind, $length) = unpack 'a N', $received;
    return lose_connection() if $length > $max_frame;
    last if length $received < 5 + $length;
    my $data = substr $received, 5, $length;
    substr $received, 0, 5 + $length, '';
    obey($kind, $data);
  }
}

my %orders = (
  i => sub { $sink ? $input .= $_[0] : acknowledge(length $_[0]) },
  e => sub { $input_ends = 1 },
  w => sub { resize(unpack 'n2', $_[0]) },
  s => sub { forward_signal(unpack 'C', $_[0]) if !defined $exit_code },
  a => sub { $disconnected_at = undef },
  d => sub { $disconnected_at //= now() },
  q => sub { finish() },
);

sub obey {
  my ($kind, $data) = @_;
  $orders{$kind}->($data) if $orders{$kind};
}

# The platform knows the exit code.
sub finish {
  return if !$is_reported;
  ($is_done, $listener, @scrollback) = (1, undef);
  lose_connection();
  $quit_at = undef if defined $end_of_box;
}

1;
