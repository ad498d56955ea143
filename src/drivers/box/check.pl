# Tries one thing that boxes need: box-check.pl <machine> layers|network|filter. Nothing of it stays: what is made ends
# with this process. Silent when it works.
use strict;

our ($machine, %namespace);
require($0 =~ s{[^/]*$}{}r . $_) for 'lib.pl', 'mount.pl';

($machine, my $what) = @ARGV;
my %checks = (layers => \&check_layers, network => \&check_network, filter => \&check_filter);
$checks{$what}->();

sub check_layers {
  my $userns = $> == 0 ? make_user_namespace(300000) : enter_own_namespace();
  call('unshare', $namespace{mnt});
  mount_at('none', '/', 'none', 0x80000 | 0x4000);
  mount_at('none', '/tmp', 'tmpfs', 0);
  chdir '/tmp' or die "/tmp: $!\n";
  mkdir $_ for qw(lower base upper work root);
  map_owners($userns, $userns ? '/usr' : 'base', 'lower');
  mount_at('overlay', 'root', 'overlay', 0, 'lowerdir=lower,upperdir=upper,workdir=work' . ($userns ? '' : ',userxattr'));
}

sub check_network {
  call('unshare', $namespace{net});
  run_quietly('ip', 'link', 'add', 'name', 'bx', 'type', 'veth', 'peer', 'name', 'eth0');
  run_quietly('nft', 'add table inet b; add chain inet b f { type filter hook forward priority 0; };'
    . ' add rule inet b f ct state established accept;'
    . ' add chain inet b n { type nat hook postrouting priority 100; }; add rule inet b n masquerade');
}

sub run_quietly {
  system(@_) == 0 or die "$_[0] failed\n";
}

sub check_filter {
  local $/;
  my $filter = <STDIN>;
  forbid_new_privileges();
  apply_filter($filter);
  die "the filter refuses nothing\n" if attempt('unshare', $namespace{user}) == 0;
}
