# Mounts the root filesystem of a sandbox that is made from an image: the layers of the image under the layer that the
# sandbox writes. Loaded by start.pl.
use strict;

sub mount_box_image {
  my ($userns, $config, $layers) = @_;
  my $lower = map_layers($userns, $layers);
  my $extra = $userns ? '' : ',userxattr';
  mount_at('overlay', 'root', 'overlay', 2 | 4, "lowerdir=$lower,upperdir=upper,workdir=work$extra"); # nosuid, nodev
  in_root($userns, sub { make_box_mount_points($config->{dir}); return () });
}

# Makes the mount points. An image may lack them, or have links there that would lead a mount elsewhere.
sub make_box_mount_points {
  my ($dir) = @_;
  make_mount_points('/proc', '/dev', '/.berth', '/.sprite');
  die "the image has a link at /etc, and a sandbox needs a directory there\n" if -l '/etc';
  make_directory('/etc');
  unlink '/etc/resolv.conf' if -l '/etc/resolv.conf' || !-f '/etc/resolv.conf';
  sysopen(my $names, '/etc/resolv.conf', 0x40 | 0x800, 0644) or die "write /etc/resolv.conf in the image: $!\n";
  mkdir '/tmp', 01777 and chmod 01777, '/tmp';
  make_directory($_) for '/home/sprite', defined $dir ? $dir : ();
}

1;
