# Who a program of an image runs as. To be called where the files of the image are those of this process.
use strict;

# By name or number, with or without a group. Numbers need no entry. What an image says of a user beyond that: the first
# group, all others that name the user, and the home.
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

# A name wins over a number, as everywhere.
sub find_entry {
  my ($file, $word) = @_;
  my @entries = read_entries($file);
  my ($found) = grep { $_->[0] eq $word } @entries;
  return $found if $found || $word !~ /^\d+$/;
  ($found) = grep { ($_->[2] // '') =~ /^\d+$/ && $_->[2] == $word } @entries;
  return $found;
}

# Only what is a file: reading from a pipe would wait for somebody who writes.
sub read_entries {
  my ($file) = @_;
  return () if !-f $file;
  return grep { @$_ > 2 } map { [split /:/, $_, -1] } split /\n/, read_file($file) // '';
}

sub checked_id {
  my ($id) = @_;
  die "there is no user or group $id in a machine: they have the numbers 0 to 65535\n" if $id !~ /^\d+$/ || $id > 65535;
  return $id + 0;
}

# The numbers of a range begin with its first.
sub become_user {
  my ($user, $first) = @_;
  my $groups = pack 'L*', map { $_ + $first } @{$user->{groups}};
  call('setgroups', scalar @{$user->{groups}}, $groups);
  my ($uid, $gid) = ($user->{uid} + $first, $user->{gid} + $first);
  call('setresgid', $gid, $gid, $gid);
  call('setresuid', $uid, $uid, $uid);
}

1;
