# Finds the user that a program of an image runs as. To be called with the root filesystem of the image.
use strict;

my $max_entry_bytes = 4 << 20; # of /etc/passwd or /etc/group

# Resolves a user in the syntax of image configs: a name or a number, optionally with a colon and a group. Numbers need no
# entry in /etc/passwd. The entry supplies the primary group, the home directory and, without an explicit group, the
# supplementary groups.
sub find_user {
  my ($text) = @_;
  my ($name, $group) = split /:/, $text, 2;
  $name = '0' if !defined $name || $name eq '';
  my $user = find_entry('/etc/passwd', $name);
  die "there is no user $name in the image\n" if !$user && $name !~ /^\d+$/;
  my %found = (
    uid => checked_id($user ? $user->[2] : $name),
    gid => checked_id($user ? $user->[3] : 0),
    home => $user && $user->[5] || '/',
    groups => [],
  );
  if (defined $group && $group ne '') {
    my $entry = find_entry('/etc/group', $group);
    die "there is no group $group in the image\n" if !$entry && $group !~ /^\d+$/;
    $found{gid} = checked_id($entry ? $entry->[2] : $group);
  } elsif ($user) {
    my @memberships = grep { grep { $_ eq $user->[0] } split /,/, $_->[3] // '' } read_entries('/etc/group');
    $found{groups} = [map { checked_id($_->[2]) } @memberships];
  }
  return \%found;
}

# A name takes precedence over a number, as with other tools.
sub find_entry {
  my ($file, $word) = @_;
  my @entries = read_entries($file);
  my ($found) = grep { $_->[0] eq $word } @entries;
  return $found if $found || $word !~ /^\d+$/;
  ($found) = grep { ($_->[2] // '') =~ /^\d+$/ && $_->[2] == $word } @entries;
  return $found;
}

# The programs of the image may have put anything in place of the file.
sub read_entries {
  my ($file) = @_;
  sysopen(my $in, $file, 0x800) or return (); # O_RDONLY and O_NONBLOCK: opening a named pipe does not block
  -f $in or return ();
  my $text = '';
  while (length $text < $max_entry_bytes) { last if !sysread $in, $text, 65536, length $text }
  return grep { @$_ > 2 } map { [split /:/, $_, -1] } split /\n/, $text;
}

sub checked_id {
  my ($id) = @_;
  die "user or group id $id is not in the range from 0 to 65535\n" if $id !~ /^\d+$/ || $id > 65535;
  return $id + 0;
}

# $first is the host uid of root in the box; it is 0 in the user namespace of the box.
sub become_user {
  my ($user, $first) = @_;
  my $groups = pack 'L*', map { $_ + $first } @{$user->{groups}};
  call('setgroups', scalar @{$user->{groups}}, $groups);
  my ($uid, $gid) = ($user->{uid} + $first, $user->{gid} + $first);
  call('setresgid', $gid, $gid, $gid);
  call('setresuid', $uid, $uid, $uid);
}

1;
