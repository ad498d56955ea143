# How a sandbox is made from an image: what box-start.pl does instead of showing the programs of the host. Its root is that
# of the image under the layer that the sandbox writes.
use strict;

sub mount_box_image {
  my ($userns, $config, $layers) = @_;
  my $lower = map_layers($userns, $layers);
  my $extra = $userns ? '' : ',userxattr';
  mount_at('overlay', 'root', 'overlay', 2 | 4, "lowerdir=$lower,upperdir=upper,workdir=work$extra"); # nosuid, nodev
  in_root($userns, sub { make_box_places($config->{dir}); return () });
}

# An image may have none of them, or links in their place that would lead a mount out of it.
sub make_box_places {
  my ($dir) = @_;
  make_places('/proc', '/dev', '/.berth', '/.sprite');
  die "the image has a link at /etc, and a sandbox needs a directory there\n" if -l '/etc';
  make_directory('/etc');
  unlink '/etc/resolv.conf' if -l '/etc/resolv.conf' || !-f '/etc/resolv.conf';
  sysopen(my $names, '/etc/resolv.conf', 0x40 | 0x800, 0644) or die "write /etc/resolv.conf in the image: $!\n";
  mkdir '/tmp', 01777 and chmod 01777, '/tmp';
  make_directory($_) for '/home/sprite', defined $dir ? $dir : ();
}

1;
