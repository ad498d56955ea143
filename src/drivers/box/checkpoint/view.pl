# Shows checkpoints inside a box that runs: `box-view.pl <config> <service>`, with the file that the box was started by and
# its service in the host's supervision tree. Each is mounted where a start of the box would mount it, among the layers of
# the box, and from there into the box. It goes when its directory is removed, and with the box.
use strict;

our ($machine, %namespace);
require($0 =~ s{[^/]*$}{}r . $_) for '../lib.pl', '../mount.pl';

my ($file, $service) = @ARGV;
my %config = read_config($file);
$machine = $config{machine};
my $uid = $config{uid} // $>;
my $watched = supervised_process($service) or exit 0;
my $first = first_process($service, $uid) or exit 0;
my ($outside, $inside) = map { attempt('pidfd_open', $_, 0) } $watched, $first;
# Looked up again after they were taken hold of, so that no other process can have their numbers.
exit 0 if $outside < 0 || $inside < 0 || supervised_process($service) != $watched || first_process($service, $uid) != $first;

# In a user namespace of his own an ordinary user may mount.
call('setns', $outside, $namespace{mnt} | ($config{way} eq 'full' ? 0 : $namespace{user}));
chdir $config{directory} or die "$config{directory}: $!\n";
my %trees = map { $_ => hold($_) } views();
call('setns', $inside, $namespace{mnt});
my $place = '/.sprite/checkpoints';
for my $view (grep { $trees{$_} && -d "$place/$_" && !is_mounted("$place/$_") } keys %trees) {
  my ($target, $empty) = ("$place/$view\0", "\0");
  call('move_mount', $trees{$view}, $empty, -100, $target, 4);
}

# A mount of its own with all that is mounted in it, at no place yet.
sub hold {
  my ($view) = @_;
  my $path = "shown/checkpoints/$view";
  mount_view($view, \%config) if !is_mounted($path);
  return 0 if !is_mounted($path);
  my $name = "$path\0";
  return call('open_tree', -100, $name, 1 | 0x80000 | 0x8000);
}
