# Tests whether the host supports one feature that boxes need. Everything is made in namespaces that end with this process.
# Prints nothing when it works. For `filter`, the seccomp filter comes on standard input.
# Usage: perl check.pl <architecture> layers|network|filter
use strict;

our ($machine, %namespace);
require($0 =~ s{[^/]*$}{}r . $_) for 'lib.pl', 'mount.pl';

($machine, my $feature) = @ARGV;
my %checks = (layers => \&check_layers, network => \&check_network, filter => \&check_filter);
$checks{$feature}->();

sub check_layers {
  my $userns = $> == 0 ? make_user_namespace(300000) : enter_own_namespace();
  call('unshare', $namespace{mnt});
  mount_at('none', '/', 'none', 0x80000 | 0x4000); # MS_SLAVE | MS_REC
  mount_at('none', '/tmp', 'tmpfs', 0);
  chdir '/tmp' or die "/tmp: $!\n";
  mkdir $_ for qw(lower base upper work root);
  map_owners($userns, $userns ? '/usr' : 'base', 'lower');
  mount_at('overlay', 'root', 'overlay', 0, 'lowerdir=lower,upperdir=upper,workdir=work' . ($userns ? '' : ',userxattr'));
}

sub check_network {
  call('unshare', $namespace{net});
  run_or_die('ip', 'link', 'add', 'name', 'bx', 'type', 'veth', 'peer', 'name', 'eth0');
  run_or_die('nft', 'add table inet b; add chain inet b f { type filter hook forward priority 0; };'
    . ' add rule inet b f ct state established accept;'
    . ' add chain inet b n { type nat hook postrouting priority 100; }; add rule inet b n masquerade');
}

sub run_or_die {
  system(@_) == 0 or die "$_[0] failed\n";
}

sub check_filter {
  local $/;
  my $filter = <STDIN>;
  forbid_new_privileges();
  apply_filter($filter);
  die "the filter is not in force\n" if attempt('unshare', $namespace{user}) == 0;
}
