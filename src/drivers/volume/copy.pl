# Copies a volume while writes to it are blocked.
# Usage: copy.pl <source> <target directory> <name>
# The source is a disk image or a directory. The copy is made as .new~copy in the target directory and then renamed.
use strict;
use Errno;
use Fcntl qw(:flock);

require($0 =~ s{[^/]*$}{}r . 'lib.pl');

my ($source, $target, $name) = @ARGV;
my ($freeze, $thaw) = (0xC0045877, 0xC0045878); # FIFREEZE, FITHAW
my ($frozen, $guard);

exit 0 if -e "$target/$name";
-d $target or fail("there is no $target");
my $fresh = "$target/.new~copy";
system('rm', '-rf', '--', $fresh);
# These signals thaw the filesystem first. After SIGKILL the guard process does so.
$SIG{$_} = sub { fail('interrupted by a signal') } for qw(TERM INT HUP);
my $lock;
if (-f $source) {
  lock_source();
  freeze_source();
}
my @sparse = -f $source ? '--sparse=always' : ();
system(copy_command(@sparse)) == 0 or fail('the copy failed');
thaw();
system('sync', '-f', $target) == 0 or fail('the copy could not be written to the disk');
rename $fresh, "$target/$name" or fail("rename: $!");

# A directory is copied while a machine may write to it, which could put a link in place of a directory at any moment. So cp
# runs in a mount namespace with nothing but the source, the target and its own programs.
sub copy_command {
  my @cp = ('cp', '-a', '--reflink=auto', @_, '--');
  my $has_bwrap = grep { -x "$_/bwrap" } split /:/, $ENV{PATH} // '';
  return (@cp, $source, $fresh) if -f $source || !$has_bwrap;
  my @programs = map { ('--ro-bind-try', $_, $_) } '/usr', '/bin', '/lib', '/lib64';
  my @user = $> == 0 ? () : ('--unshare-user', '--uid', '0', '--gid', '0');
  return ('bwrap', @programs, '--proc', '/proc', '--ro-bind', $source, '/from', '--bind', $target, '/to', @user,
    '--unshare-pid', '--unshare-ipc', '--cap-add', 'ALL', '--die-with-parent', @cp, '/from', '/to/.new~copy');
}

sub fail {
  my ($reason) = @_;
  thaw();
  system('rm', '-rf', '--', $fresh) if defined $fresh;
  print "$reason\n";
  exit 31;
}

# While the image is copied, it is neither grown nor mounted, which both take this lock alone. Copies share it.
sub lock_source {
  open($lock, '<', $source) or fail("open: $!");
  flock($lock, LOCK_SH) or fail("lock: $!");
}

# An image without a loop device is not mounted, so nothing writes to it. While a machine ends, its mount is gone before the
# kernel releases the device.
sub freeze_source {
  for (1 .. 600) {
    my $device = find_loop($source) or return;
    my $mount = open_mounted($device);
    if ($mount) {
      start_guard($mount);
      freeze($mount);
      $frozen = $mount;
      return;
    }
    select undef, undef, undef, 0.1;
  }
  fail('the volume is in use and could not be frozen');
}

# Waits while another copy keeps the filesystem frozen.
sub freeze {
  my ($mount) = @_;
  for (1 .. 6000) {
    return if ioctl($mount, $freeze, 0);
    last if !$!{EBUSY};
    select undef, undef, undef, 0.1;
  }
  fail("the volume could not be frozen: $!");
}

# Starts a process that thaws the filesystem if this one dies without having done so.
sub start_guard {
  my ($mount) = @_;
  pipe(my $out, my $in) or fail("pipe: $!");
  my $child = fork // fail("fork: $!");
  if ($child) {
    close $out;
    $guard = $in; # close-on-exec, so child programs do not keep the pipe open
    return;
  }
  $SIG{$_} = 'IGNORE' for qw(TERM INT HUP);
  setpgrp;
  close $in;
  ioctl($mount, $thaw, 0) if !sysread $out, my $byte, 1;
  exit 0;
}

sub thaw {
  ioctl($frozen, $thaw, 0) if $frozen;
  syswrite $guard, 'x' if $guard;
  ($frozen, $guard) = ();
}
