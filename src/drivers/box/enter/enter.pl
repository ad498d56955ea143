# Runs one command in a box. The request is in the environment, or else comes through descriptor 3, a socket, for which the
# process may wait a long time. On the host this process stands for the command: it forwards signals, exits with the same
# code, and when it is killed, so is the command. The command of a session, which needs descriptor 3, outlives the platform:
# see hold.pl.
# Usage: perl enter.pl <architecture>
use strict;

our $machine;
my $here = $0 =~ s{[^/]*$}{}r;
require "${here}../lib.pl";

$machine = $ARGV[0];
my $starter = getppid;
my $channel = exists $ENV{BERTH_ENTER_0} ? undef : open_channel();
require "${here}hold.pl" if $channel;
my ($watchdog, $watchdog_pid) = start_watchdog();
my $child = 0;
my @early;
# All signals except those that cannot be caught, SIGCHLD, and aliases.
my @signals = grep { !/^(KILL|STOP|CHLD|CLD|IOT|POLL|NUM3[23])$/ } keys %SIG;
$SIG{$_} = sub { $child ? forward_signal($_[0]) : push @early, $_[0] } for @signals;

our %request = $channel ? read_words(read_request()) : take_request();
do { end_watchdog(); exit 0 } if !%request; # the spare process was not used
my $is_session = exists $request{session};
# In a machine, the user of the command comes from the image.
my $is_machine = exists $request{user};
require "${here}../user.pl" if $is_machine;
if ($is_session) { begin_session($channel) } elsif ($channel) { close $channel }
my $is_inside = eval { enter_by_request(%request) } // refuse($@ =~ s/\n\z//r);
refuse($is_machine ? 'the machine is not running' : 'the sandbox is not running') if !$is_inside;
open_streams() if $is_session;
end_with_parent() if !$is_session;
show_program() if !$is_session && !$is_machine;
$child = fork // refuse("fork: $!");
run_command() if !$child;
syswrite $watchdog, "$child\n";
forward_signal($_) for @early;
if ($is_session) {
  hold_session($child, find_program() // '');
  exit 0;
}
exit reap();

sub open_channel {
  open(my $channel, '+<&=', 3) or refuse("no command: $!");
  return $channel;
}

# The length of the request and then the request; empty when the platform has closed the socket.
sub read_request {
  my $header = read_bytes(4) // return '';
  return read_bytes(unpack 'N', $header) // '';
}

sub read_bytes {
  my ($wanted) = @_;
  my $text = '';
  while (length $text < $wanted) {
    my $got = sysread $channel, $text, $wanted - length $text, length $text;
    return undef if defined $got ? $got == 0 : $! != 4; # EINTR
  }
  return $text;
}

sub end_with_parent {
  # PR_SET_PDEATHSIG: killed when the parent dies, which may have happened already. Changing the uid clears it, so it is set
  # only now.
  call('prctl', 1, 9, 0, 0, 0);
  exit 126 if getppid != $starter;
}

# Waits for the end of the command and returns its exit code.
sub reap {
  waitpid $child, 0;
  my $status = $?;
  $child = 0;
  syswrite $watchdog, 'done';
  end_watchdog();
  return $status & 127 ? 128 + ($status & 127) : $status >> 8;
}

sub refuse {
  my ($why) = @_;
  fail_session($why) if $is_session;
  syswrite STDERR, "$why\n";
  exit 126;
}

# Shows the path of the program on the command line of this process, where the platform reads it.
sub show_program {
  my $path = find_program();
  $0 = "box-enter: $path" if defined $path;
}

sub find_program {
  my ($path) = grep { -f && -x _ } candidates();
  return $path;
}

# The paths at which the program may be.
sub candidates {
  my $program = $request{argv}[0];
  return $program if $program =~ m{^/};
  return "$request{dir}[0]/" . $program =~ s{^(\./+)+}{}r if $program =~ m{/};
  my ($path) = map { /^PATH=(.*)/s } @{$request{env}};
  return map { "$_/$program" } split /:/, $path // '';
}

# Right after the fork the command has no process group yet. SIGSTOP cannot be caught, so SIGSTKFLT stands for it.
sub forward_signal {
  my $signal = $_[0] eq 'STKFLT' ? 'STOP' : $_[0];
  kill($signal, -$child) || kill($signal, $child);
}

# Starts a process that outlives this one if it is killed, and then kills the process group of the command.
sub start_watchdog {
  pipe(my $out, my $in) or refuse("pipe: $!");
  my $process = fork // refuse("fork: $!");
  if ($process) {
    close $out;
    return ($in, $process);
  }
  close $_ for grep { $_ } $in, $channel, *STDIN, *STDOUT, *STDERR;
  call('setsid');
  my $message = '';
  while (sysread $out, $message, 64, length $message) { }
  # The pid alone, without `done`, means that the command has not ended.
  kill('KILL', -$1) || kill('KILL', $1) if $message =~ /^(\d+)\n\z/;
  kill 'KILL', $$;
}

sub end_watchdog {
  close $watchdog;
  waitpid $watchdog_pid, 0;
}

sub switch_user {
  my $user = eval { find_user($request{user}[0]) } or refuse($@ =~ s/\n\z//r);
  $ENV{HOME} //= $user->{home};
  return if $request{way}[0] ne 'full';
  become_user($user, 0);
}

sub run_command {
  call('prctl', 1, 9, 0, 0, 0); # PR_SET_PDEATHSIG: killed when its parent dies
  call('setsid');
  use_streams() if $is_session;
  $is_session = 0; # errors are output of the command from here on
  %ENV = map { split /=/, $_, 2 } @{$request{env}};
  switch_user() if $is_machine;
  my $directory = $request{dir}[0];
  chdir $directory or refuse("chdir $directory: $!");
  close_on_exec();
  my ($program, @arguments) = @{$request{argv}};
  my $is_path = index($program, '/') >= 0;
  my $denied = 0;
  # Signals that arrived before the command existed.
  for (splice @early) { $SIG{$_} = 'DEFAULT'; kill $_, $$ }
  for my $file ($is_path ? $program : map { "$_/$program" } split /:/, $ENV{PATH} // '') {
    { exec {$file} $program, @arguments }
    $denied ||= $! + 0 if $! != 2 && $! != 20; # not "no such file" nor "not a directory"
  }
  $! = $denied;
  syswrite STDERR, $denied ? qq(exec: "$program": $!\n) : qq(exec: "$program": not found\n);
  exit($denied ? 126 : 127);
}
