# Mounts checkpoints in a running box. Each is mounted in the outer mount namespace of the box, as start.pl would do, and
# from there moved into the inner one. The mounts end with the box, or when their directory is removed.
# Usage: perl view.pl <config file of the box> <service directory of the box>
use strict;

our ($machine, %namespace);
require($0 =~ s{[^/]*$}{}r . $_) for '../lib.pl', '../mount.pl';

my ($file, $service) = @ARGV;
my %config = read_config($file);
$machine = $config{machine};
my $uid = $config{uid} // $>;
my $supervised = supervised_process($service) or exit 0;
my $first = first_process($service, $uid) or exit 0;
my ($outside, $inside) = map { attempt('pidfd_open', $_, 0) } $supervised, $first;
# Looked up again now that the pidfds are open, in case the pids were reused in between.
exit 0 if $outside < 0 || $inside < 0 || supervised_process($service) != $supervised || first_process($service, $uid) != $first;

# Without root, mounting needs the user namespace of the box as well.
call('setns', $outside, $namespace{mnt} | ($config{way} eq 'full' ? 0 : $namespace{user}));
chdir $config{directory} or die "$config{directory}: $!\n";
my %trees = map { $_ => clone_view($_) } views();
call('setns', $inside, $namespace{mnt});
my $inner = '/.sprite/checkpoints';
for my $view (grep { $trees{$_} && -d "$inner/$_" && !is_mounted("$inner/$_") } keys %trees) {
  my ($target, $empty) = ("$inner/$view\0", "\0");
  call('move_mount', $trees{$view}, $empty, -100, $target, 4);
}

# Returns a detached copy of the mount of a checkpoint, with the mounts below it.
sub clone_view {
  my ($view) = @_;
  my $path = "shown/checkpoints/$view";
  mount_view($view, \%config) if !is_mounted($path);
  return 0 if !is_mounted($path);
  my $name = "$path\0";
  return call('open_tree', -100, $name, 1 | 0x80000 | 0x8000);
}
