# Opens files below a directory that a tenant can write. No component of the path is followed if it is a link.
use strict;

my $openat2 = 437; # on all architectures
my $resolve = 0x02 | 0x04 | 0x08; # RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH

# Returns a handle, or undef if there is no such file. The flags must include O_NONBLOCK unless they include O_DIRECTORY:
# opening a named pipe or a leased file would block otherwise. The root is trusted.
sub open_untrusted {
  my ($root, $path, $flags) = @_;
  opendir(my $directory, $root) or return undef;
  my $relative = ($path =~ s{^/+}{}r || '.') . "\0";
  my $how = pack 'QQQ', $flags, 0, $resolve;
  my $descriptor = syscall($openat2, fileno $directory, $relative, $how, length $how);
  return undef if $descriptor < 0;
  open(my $handle, '<&=', $descriptor) or return undef;
  return $handle;
}

1;
