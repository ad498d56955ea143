# Runs one command in a box: `box-enter.pl <machine>`, with the command in the environment, or else by what is read to its
# end from descriptor 3, for which it can be kept waiting. Stands for the command outside: signals are handed on, the end
# is that of the command, and when this process is killed the command is.
use strict;

our $machine;
require($0 =~ s{[^/]*$}{}r . '../lib.pl');

$machine = $ARGV[0];
my $starter = getppid;
my $orders = exists $ENV{BERTH_ENTER_0} ? undef : open_orders();
my ($guard, $guarded) = start_guard();
my $child = 0;
my @early;
# All but those that cannot be taken, the word that the command has changed its state, and second names.
my @signals = grep { !/^(KILL|STOP|CHLD|CLD|IOT|POLL|NUM3[23])$/ } keys %SIG;
$SIG{$_} = sub { $child ? hand_on($_[0]) : push @early, $_[0] } for @signals;

my %request = $orders ? read_words(read_orders()) : take_request();
do { end_guard(); exit 0 } if !%request; # it was not needed
# In a machine, who runs the command is for the image to say.
my $is_machine = exists $request{user};
require($0 =~ s{[^/]*$}{}r . '../user.pl') if $is_machine;
# The terminal is the command's own, also when it opens it by name.
my $is_terminal = $request{terminal}[0];
chown $request{uid}[0], $request{uid}[0], *STDIN if $is_terminal;
enter_by_request(%request) or refuse($is_machine ? 'the machine is not running' : 'the sandbox is not running');
# Killed with whoever started it, who may have died already. Becoming another user forgets it, so it is asked for now.
call('prctl', 1, 9, 0, 0, 0);
exit 126 if getppid != $starter;

if ($is_terminal) {
  # The terminal is left to the command, whose session it will belong to. Leaving it sends a hangup.
  local $SIG{HUP} = 'IGNORE';
  ioctl(STDIN, 0x5422, 0);
}
tell_program() if !$is_machine;
$child = fork // refuse("fork: $!");
run_command() if !$child;
syswrite $guard, "$child\n";
hand_on($_) for @early;
waitpid $child, 0;
my $status = $?;
syswrite $guard, 'done';
end_guard();
exit($status & 127 ? 128 + ($status & 127) : $status >> 8);

sub open_orders {
  open(my $orders, '<&=', 3) or refuse("no command: $!");
  return $orders;
}

sub read_orders {
  my $text = '';
  while (1) {
    my $got = sysread $orders, $text, 65536, length $text;
    last if defined $got ? $got == 0 : $! != 4; # not because of a signal
  }
  close $orders;
  return $text;
}

sub refuse {
  my ($why) = @_;
  syswrite STDERR, "$why\n";
  exit 126;
}

# The path of what is about to run, on the command line of this process: whoever started it looks there.
sub tell_program {
  my ($path) = grep { -f && -x _ } places();
  $0 = "box-enter: $path" if defined $path;
}

# Where the program can be.
sub places {
  my $program = $request{argv}[0];
  return $program if $program =~ m{^/};
  return "$request{dir}[0]/" . $program =~ s{^(\./+)+}{}r if $program =~ m{/};
  my ($path) = map { /^PATH=(.*)/s } @{$request{env}};
  return map { "$_/$program" } split /:/, $path // '';
}

# At first the command has no group of its own yet. STOP would stop this process alone; it is asked for by a signal that
# nothing else uses.
sub hand_on {
  my $signal = $_[0] eq 'STKFLT' ? 'STOP' : $_[0];
  kill($signal, -$child) || kill($signal, $child);
}

# Outlives this process if it is killed, and then ends the command with everything in its group.
sub start_guard {
  pipe(my $out, my $in) or refuse("pipe: $!");
  my $process = fork // refuse("fork: $!");
  if ($process) {
    close $out;
    return ($in, $process);
  }
  close $_ for grep { $_ } $in, $orders, *STDIN, *STDOUT, *STDERR;
  call('setsid');
  my $heard = '';
  while (sysread $out, $heard, 64, length $heard) { }
  # Without the word that it is over.
  kill('KILL', -$1) || kill('KILL', $1) if $heard =~ /^(\d+)\n\z/;
  kill 'KILL', $$;
}

sub end_guard {
  close $guard;
  waitpid $guarded, 0;
}

sub switch_user {
  my $user = eval { find_user($request{user}[0]) } or refuse($@ =~ s/\n\z//r);
  $ENV{HOME} //= $user->{home};
  return if $request{way}[0] ne 'full';
  chown $user->{uid}, $user->{gid}, *STDIN if $is_terminal;
  become_user($user, 0);
}

sub run_command {
  call('prctl', 1, 9, 0, 0, 0); # killed when its parent is
  call('setsid');
  ioctl(STDIN, 0x540e, 0) if $is_terminal;
  %ENV = map { split /=/, $_, 2 } @{$request{env}};
  switch_user() if $is_machine;
  my $directory = $request{dir}[0];
  chdir $directory or refuse("chdir $directory: $!");
  close_on_exec();
  my ($program, @arguments) = @{$request{argv}};
  my $is_path = index($program, '/') >= 0;
  my $denied = 0;
  # What was meant for it, and came before it was there to be told.
  for (splice @early) { $SIG{$_} = 'DEFAULT'; kill $_, $$ }
  for my $file ($is_path ? $program : map { "$_/$program" } split /:/, $ENV{PATH} // '') {
    { exec {$file} $program, @arguments }
    $denied ||= $! + 0 if $! != 2 && $! != 20; # not "no such file" nor "not a directory"
  }
  $! = $denied;
  syswrite STDERR, $denied ? qq(exec: "$program": $!\n) : qq(exec: "$program": not found\n);
  exit($denied ? 126 : 127);
}
