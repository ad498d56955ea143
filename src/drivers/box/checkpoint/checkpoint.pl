# Copies the layers of a box while its processes are frozen. The copy is made in <parent>/.new~<name> and renamed to
# <parent>/<name>. <freezer> is the control group to freeze, <members> the file that lists the processes of the box; with an
# empty <freezer> nothing is frozen. In the arguments of the copying program, FROM and TO stand for the directories; a
# program other than cp is expected to mount them at /from and /to.
# Usage: perl checkpoint.pl copy <freezer> <members> <from> <parent> <name> <program>... -- <layer>...
#        perl checkpoint.pl thaw <freezer>
use strict;
use Errno;

my ($verb, $freezer, $members, $from, $parent, $name, @words) = @ARGV;
my $is_cgroup_v1 = $freezer =~ m{/freezer/};

if ($verb eq 'thaw') {
  thaw();
  exit 0;
}

# A signal thaws the processes before the program ends.
$SIG{$_} = sub { thaw(); exit 30 } for qw(TERM INT HUP);
my @program;
push @program, shift @words while @words && $words[0] ne '--';
shift @words;

my $fresh = "$parent/.new~$name";
exit 0 if -e "$parent/$name";
system('rm', '-rf', '--', $fresh) if -e $fresh;
mkdir $fresh, 0700 or fail(31, "cannot make $fresh: $!");
fail(32, 'its processes could not be frozen') if $freezer ne '' && !freeze();
my $code = copy();
unfreeze();
fail(33, 'the copy failed') if $code;
rename $fresh, "$parent/$name" or fail(34, "rename: $!");
thaw();

sub fail {
  my ($exit, $reason) = @_;
  thaw();
  system('rm', '-rf', '--', $fresh);
  print "$reason\n";
  exit $exit;
}

sub copy {
  my @layers = grep { -d "$from/$_" } @words;
  my %directory = ('FROM' => $from, 'TO' => $fresh);
  my @command = map { exists $directory{$_} ? $directory{$_} : $_ } @program;
  # cp without a mount namespace gets the real paths.
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

# With cgroup v1, moves the processes of the box into the freezer group. Processes that they fork start there.
sub gather {
  for (1 .. 100) {
    my %inside = map { $_ => 1 } split /\n/, read_file("$freezer/cgroup.procs");
    my @outside = grep { !$inside{$_} } split /\n/, read_file($members);
    # A zombie cannot be moved (ESRCH), and writes nothing.
    my @moved = grep { write_file("$freezer/cgroup.procs", $_) || !$!{ESRCH} } @outside;
    return 1 if !@moved;
  }
  return 0;
}

sub freeze {
  if ($is_cgroup_v1) {
    mkdir $freezer, 0755;
    gather() or return 0;
  }
  for (1 .. 2500) {
    if ($is_cgroup_v1) {
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

sub unfreeze {
  return if $freezer eq '' || !-d $freezer;
  write_file("$freezer/cgroup.freeze", '0') if !$is_cgroup_v1;
  write_file("$freezer/freezer.state", 'THAWED') if $is_cgroup_v1;
}

# Thaws the processes. With cgroup v1 the group is emptied and removed, which may take several attempts.
sub thaw {
  unfreeze();
  return if !$is_cgroup_v1 || !-d $freezer;
  my $parent_group = $freezer =~ s{/[^/]+$}{}r;
  for (1 .. 100) {
    write_file("$parent_group/cgroup.procs", $_) for split /\n/, read_file("$freezer/cgroup.procs");
    last if rmdir $freezer;
  }
}
