# Tries to use each path that standard input lists, as the user that runs it, and prints what works: a letter and the path.
# r: a file can be read, w: it can be written, l: a directory can be listed, c: a socket accepts connections, x: a file can
# be executed.
use strict;

while (my $path = <STDIN>) {
  chomp $path;
  next if -l $path; # the target is listed as well if it is in the home
  if (-d $path) {
    print "l $path\n" if opendir(my $directory, $path);
    print "w $path\n" if -w $path;
  } elsif (-S $path) {
    socket(my $socket, 1, 1, 0) or next;
    print "c $path\n" if length $path < 108 && connect $socket, pack('S a*', 1, $path);
  } else {
    print "x $path\n" if -f $path && -x $path;
    print "r $path\n" if sysopen(my $in, $path, 0x800);
    print "w $path\n" if sysopen(my $out, $path, 0x801);
  }
}
