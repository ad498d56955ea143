# Copies the layers of a box while its processes are held still:
#   box-checkpoint.pl copy <freezer> <members> <from> <place> <name> <program> ... -- <layer> ...
#   box-checkpoint.pl thaw <freezer>
# The copy is made in <place>/.new~<name> and renamed to <place>/<name>. Without a freezer nothing is held still. What
# is to be copied is shown to the copying program, given with its arguments, as /from, and where to as /to.
use strict;
use Errno;

my ($verb, $freezer, $members, $from, $place, $name, @words) = @ARGV;
my $is_first = $freezer =~ m{/freezer/}; # of the two versions of control groups

if ($verb eq 'thaw') {
  thaw();
  exit 0;
}

# Told to end, it lets go first.
$SIG{$_} = sub { thaw(); exit 30 } for qw(TERM INT HUP);
my @program;
push @program, shift @words while @words && $words[0] ne '--';
shift @words;

my $fresh = "$place/.new~$name";
exit 0 if -e "$place/$name";
system('rm', '-rf', '--', $fresh) if -e $fresh;
mkdir $fresh, 0700 or refuse(31, "cannot make $fresh: $!");
refuse(32, 'its processes could not be held still') if $freezer ne '' && !freeze();
my $code = copy();
let_go();
refuse(33, 'the copy failed') if $code;
rename $fresh, "$place/$name" or refuse(34, "rename: $!");
thaw();

sub refuse {
  my ($exit, $reason) = @_;
  thaw();
  system('rm', '-rf', '--', $fresh);
  print "$reason\n";
  exit $exit;
}

sub copy {
  my @layers = grep { -d "$from/$_" } @words;
  my %shown = ('FROM' => $from, 'TO' => $fresh);
  my @command = map { exists $shown{$_} ? $shown{$_} : $_ } @program;
  # A copier that is not shown places under names of its own gets them as they are.
  my ($source, $target) = $command[0] eq 'cp' ? ($from, $fresh) : ('/from', '/to');
  return system(@command, '--', (map { "$source/$_" } @layers), "$target/");
}

sub read_file {
  my ($file) = @_;
  open(my $handle, '<', $file) or return '';
  local $/;
  return <$handle> // '';
}

sub write_file {
  my ($file, $text) = @_;
  open(my $handle, '>', $file) or return 0;
  return defined syswrite($handle, $text);
}

# In the first version processes are moved into a group of its own. Those that they start meanwhile are born there.
sub gather {
  for (1 .. 100) {
    my %inside = map { $_ => 1 } split /\n/, read_file("$freezer/cgroup.procs");
    my @outside = grep { !$inside{$_} } split /\n/, read_file($members);
    # One that has ended and was not buried yet cannot be moved and writes nothing.
    my @moved = grep { write_file("$freezer/cgroup.procs", $_) || !$!{ESRCH} } @outside;
    return 1 if !@moved;
  }
  return 0;
}

sub freeze {
  if ($is_first) {
    mkdir $freezer, 0755;
    gather() or return 0;
  }
  for (1 .. 2500) {
    if ($is_first) {
      write_file("$freezer/freezer.state", 'FROZEN');
      return gather() if read_file("$freezer/freezer.state") =~ /^FROZEN/;
    } else {
      write_file("$freezer/cgroup.freeze", '1') or return 0;
      return 1 if read_file("$freezer/cgroup.events") =~ /^frozen 1$/m;
    }
    select undef, undef, undef, 0.002;
  }
  return 0;
}

sub let_go {
  return if $freezer eq '' || !-d $freezer;
  write_file("$freezer/cgroup.freeze", '0') if !$is_first;
  write_file("$freezer/freezer.state", 'THAWED') if $is_first;
}

# Nothing is left of it: the group of the first version is emptied and goes, which takes a moment.
sub thaw {
  let_go();
  return if !$is_first || !-d $freezer;
  my $above = $freezer =~ s{/[^/]+$}{}r;
  for (1 .. 100) {
    write_file("$above/cgroup.procs", $_) for split /\n/, read_file("$freezer/cgroup.procs");
    last if rmdir $freezer;
  }
}
