# Executes a program in namespaces of its own, in which it sees nothing of the host but the paths it was given, and has no
# network. It can still serve the network: its first listening sockets are replaced by sockets that were opened outside.
# Usage: perl confine.pl <architecture> <option>... -- <command>...
#   --filter <file>                 the seccomp filter; without it there are no namespaces, where the host supports none
#   --user <uid> <gid>              who runs the command; requires root
#   --keep <capability>             a capability that the command keeps, such as dac_read_search
#   --read <path>, --write <path>   what it sees, at the same path as outside
#   --name <uid> <name>             a line of its /etc/passwd
#   --listen <address> <port>       a socket for its network clients; in the order in which the program listens
#   --inside                        a socket that the program listens on and keeps, for connections to itself
#   --socket <path>                 a Unix socket outside of its view, after those above
#   --lock <file>                   waits until no process of an earlier run is left
#   --remove <path>                 removes a file that an earlier run left behind
#   --pid <file>                    records the pid of the parent, which is the one that the supervisor knows
# Exit code 100: one of the paths does not exist.
use strict;
use Fcntl qw(F_SETFD F_SETFL F_GETFL FD_CLOEXEC LOCK_EX O_NONBLOCK);
use Socket qw(AF_INET AF_INET6 AF_UNIX IPPROTO_IPV6 IPV6_V6ONLY SOCK_STREAM SOL_SOCKET SO_REUSEADDR
  inet_pton pack_sockaddr_in pack_sockaddr_in6 pack_sockaddr_un);

our $machine;
my $here = $0 =~ s{[^/]*$}{}r;
require($here . '../box/lib.pl');

$machine = shift @ARGV;
# How many values each option has.
my %arity = (filter => 1, user => 2, keep => 1, read => 1, write => 1, name => 2, listen => 2, inside => 0, socket => 1, lock => 1, remove => 1, pid => 1);
my %option = map { $_ => [] } keys %arity;
while (defined(my $word = shift @ARGV)) {
  last if $word eq '--';
  my ($name) = $word =~ /^--(\w+)$/;
  my $count = $arity{$name // ''} // die "unknown option $word\n";
  push @{$option{$name}}, [splice @ARGV, 0, $count];
}
my @command = @ARGV or die "no command\n";
my @user = map { @$_ } @{$option{user}};
my @kept = map { $_->[0] } @{$option{keep}};

for my $path (map { $_->[0] } @{$option{read}}, @{$option{write}}) {
  next if -e $path || !@{$option{filter}};
  print "$path does not exist\n";
  exit 100;
}
my $lock = take_lock();
unlink $_->[0] or -d $_->[0] && system('rm', '-rf', '--', $_->[0]) for @{$option{remove}};
my @sockets = (
  (map { network_socket(@$_) } @{$option{listen}}), (map { undef } @{$option{inside}}), (map { unix_socket(@$_) } @{$option{socket}}),
);
record_pid($_->[0]) for @{$option{pid}};
forbid_new_privileges();
if (!@{$option{filter}}) {
  exec program() or die "$command[0]: $!\n";
}
hand_over(@sockets) if @sockets;
run_confined();

# All processes of the box inherit the descriptor, so the lock is free when the last one has ended.
sub take_lock {
  my ($file) = map { $_->[0] } @{$option{lock}};
  return undef if !defined $file;
  open(my $lock, '<', $file) or die "$file: $!\n";
  flock($lock, LOCK_EX) or die "$file: $!\n";
  fcntl($lock, F_SETFD, 0);
  return $lock;
}

sub record_pid {
  my ($file) = @_;
  write_file("$file.new", getppid() . "\n") && chmod(0600, "$file.new") && rename("$file.new", $file) or die "$file: $!\n";
}

sub network_socket {
  my ($address, $port) = @_;
  my $family = $address =~ /:/ ? AF_INET6 : AF_INET;
  my $host = inet_pton($family, $address) // die "$address is not an address\n";
  socket(my $socket, $family, SOCK_STREAM, 0) or die "socket: $!\n";
  setsockopt($socket, SOL_SOCKET, SO_REUSEADDR, 1);
  setsockopt($socket, IPPROTO_IPV6, IPV6_V6ONLY, 1) if $family == AF_INET6;
  bind($socket, $family == AF_INET6 ? pack_sockaddr_in6($port, $host) : pack_sockaddr_in($port, $host))
    or die "could not listen on $address port $port: $!\n";
  return ready($socket);
}

# Only the owner of the directory can connect, and those whom the socket was mounted for.
sub unix_socket {
  my ($path) = @_;
  unlink $path;
  socket(my $socket, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
  bind($socket, pack_sockaddr_un($path)) or die "$path: $!\n";
  chmod 0666, $path or die "$path: $!\n";
  return ready($socket);
}

# PgBouncer accepts connections until there is none left, so accept must not block.
sub ready {
  my ($socket) = @_;
  fcntl($socket, F_SETFL, fcntl($socket, F_GETFL, 0) | O_NONBLOCK);
  fcntl($socket, F_SETFD, FD_CLOEXEC);
  return $socket;
}

# Installs a filter that suspends each call of listen(2), and starts a process that answers: it replaces the descriptor by
# the next socket and lets the call go on. The process ends after the last socket; from then on listen(2) fails.
sub hand_over {
  my (@sockets) = @_;
  my ($architecture, $listen) = @{{ x64 => [0xc000003e, 50], arm64 => [0xc00000b7, 201] }->{$machine}};
  my $program = join '', map { pack 'S C C L', @$_ } (
    [0x20, 0, 0, 4],               # load the architecture
    [0x15, 0, 3, $architecture],   # another one: allow
    [0x20, 0, 0, 0],               # load the number of the call
    [0x15, 0, 1, $listen],
    [0x06, 0, 0, 0x7fc00000],      # SECCOMP_RET_USER_NOTIF
    [0x06, 0, 0, 0x7fff0000],      # SECCOMP_RET_ALLOW
  );
  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER
  my $descriptor = call('seccomp', 1, 8, pack('S x6 P', length($program) / 8, $program));
  open(my $listener, '+<&=', $descriptor) or die "listener: $!\n";
  my $main = $$;
  my $child = fork // die "fork: $!\n";
  # The child forks again, because bwrap, which this process becomes, does not expect children of its own.
  return waitpid($child, 0) if $child;
  exit 0 if fork // die "fork: $!\n";
  close $lock if $lock;
  my $ended = call('pidfd_open', $main, 0);
  answer($listener, $ended, $_) or last for @sockets;
  exit 0;
}

# Returns false when the program has ended.
sub answer {
  my ($listener, $ended, $socket) = @_;
  my $watched = '';
  vec($watched, $_, 1) = 1 for fileno $listener, $ended;
  select($watched, undef, undef, undef) > 0 or return 0;
  return 0 if !vec($watched, fileno $listener, 1);
  my $request = "\0" x 80;
  ioctl($listener, 0xc0502100, $request) or return 0; # SECCOMP_IOCTL_NOTIF_RECV
  my ($id, $number) = unpack 'Q x24 Q', $request;
  # SECCOMP_IOCTL_NOTIF_ADDFD with SECCOMP_ADDFD_FLAG_SETFD and O_CLOEXEC
  return 0 if $socket && !ioctl($listener, 0x40182103, my $add = pack('Q L4', $id, 1, fileno $socket, $number, 0x80000));
  # SECCOMP_IOCTL_NOTIF_SEND with SECCOMP_USER_NOTIF_FLAG_CONTINUE
  return ioctl($listener, 0xc0182101, my $go = pack('Q q l L', $id, 0, 0, 1));
}

sub run_confined {
  open(my $filter, '<', $option{filter}[0][0]) or die "$option{filter}[0][0]: $!\n";
  my $names = text_descriptor(join '', map { "$_->[1]:x:$_->[0]:$_->[0]::/:/bin/false\n" } @{$option{name}});
  my $hosts = text_descriptor("127.0.0.1 localhost\n");
  my $lookups = text_descriptor("passwd: files\nhosts: files\n");
  fcntl($_, F_SETFD, 0) for $filter, $names, $hosts, $lookups;
  exec 'env', '--default-signal', 'bwrap',
    @user ? () : '--unshare-user', '--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try', '--unshare-net',
    '--die-with-parent', '--as-pid-1', '--new-session', '--hostname', 'cluster', '--seccomp', fileno $filter,
    '--cap-drop', 'ALL', (map { ('--cap-add', "CAP_\U$_") } @user ? (qw(setuid setgid setpcap), @kept) : ()),
    program_directories(), '--proc', '/proc', '--dev', '/dev',
    (map { ('--perms', '1777', '--tmpfs', $_) } '/dev/shm', '/tmp'),
    open_directory('/etc/ssl'),
    (map { ('--perms', '0644', '--ro-bind-data', @$_) }
      [fileno $names, '/etc/passwd'], [fileno $hosts, '/etc/hosts'], [fileno $lookups, '/etc/nsswitch.conf']),
    (map { ('--ro-bind-try', $_, $_) } '/etc/ld.so.cache', '/etc/ssl/openssl.cnf', '/etc/alternatives'),
    (map { mount_arguments('--ro-bind', $_->[0]) } @{$option{read}}),
    (map { mount_arguments('--bind', $_->[0]) } @{$option{write}}),
    '--remount-ro', '/', '--chdir', '/', '--', program()
    or die "bwrap: $!\n";
}

sub mount_arguments {
  my ($mount, $path) = @_;
  return (open_directory($path =~ s{/[^/]*$}{}r), $mount, $path, $path);
}

# bwrap makes missing directories that only root can enter, unless it is told otherwise.
sub open_directory {
  my ($path) = @_;
  return $path eq '' ? () : (open_directory($path =~ s{/[^/]*$}{}r), '--perms', '0755', '--dir', $path);
}

# The command, after it has become its user.
sub program {
  return @command if !@user;
  my ($uid, $gid) = @user;
  my $changes = join ',', '-all', map { "+$_" } @kept;
  my @sets = @kept ? ("--inh-caps=$changes", "--ambient-caps=$changes") : ('--inh-caps=-all');
  return ('setpriv', '--reuid', $uid, '--regid', $gid, '--clear-groups', '--no-new-privs', @sets, "--bounding-set=$changes", '--', @command);
}

# The programs and libraries of the host.
sub program_directories {
  return ('--ro-bind', '/usr', '/usr', map { -l "/$_" ? ('--symlink', readlink "/$_", "/$_") : -d "/$_" ? ('--ro-bind', "/$_", "/$_") : () }
    qw(bin sbin lib lib32 lib64 libx32));
}

# The text is shorter than the buffer of a pipe.
sub text_descriptor {
  my ($text) = @_;
  pipe(my $out, my $in) or die "pipe: $!\n";
  syswrite $in, $text;
  return $out;
}
