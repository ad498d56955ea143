#!/usr/bin/perl
# sprite-env: asks the platform about the sandbox this runs in. Needs nothing but Perl itself.
use strict;

my $socket = $ENV{SPRITE_API_SOCK} // '/.sprite/api.sock';

my $usage = <<'END';
sprite-env services list | get NAME | delete NAME
sprite-env services create NAME --cmd PROGRAM [--args A,B | --arg A ...] [--env KEY=VALUE ...] [--dir DIRECTORY]
                                [--needs NAME,NAME] [--http-port PORT] [--duration 5s]
sprite-env services start|restart NAME [--duration 5s]
sprite-env services stop NAME [--timeout 10s]
sprite-env services signal NAME SIGNAL
sprite-env services logs NAME [--lines N] [--duration 30s]
sprite-env checkpoints list | get ID | delete ID | restore ID
sprite-env checkpoints create [--comment TEXT]
sprite-env tasks list | get NAME | delete NAME
sprite-env tasks create|update NAME --expire 30m
sprite-env curl [options of curl] /v1/...
END

my %plural = (service => 'services', checkpoint => 'checkpoints', task => 'tasks');
my ($area, $verb, @words) = @ARGV;
if (!defined $area || $area =~ /^(help|-h|--help)$/) {
  print $usage;
  exit(defined $area ? 0 : 2);
}
$area = $plural{$area} // $area;
run_curl(@ARGV[1 .. $#ARGV]) if $area eq 'curl';

my (%option, @named);
while (defined(my $word = shift @words)) {
  if ($word !~ /^--?([a-z][a-z-]*)(?:=(.*))?$/s) { push @named, $word }
  else { push @{$option{$1}}, $2 // shift(@words) // refuse("--$1 needs a value") }
}

my %asked = (
  'services list'       => sub { ('GET', '/v1/services') },
  'services get'        => sub { ('GET', service()) },
  'services delete'     => sub { ('DELETE', service()) },
  'services create'     => sub { ('PUT', service() . query('duration'), definition()) },
  'services start'      => sub { ('POST', service() . '/start' . query('duration')) },
  'services stop'       => sub { ('POST', service() . '/stop' . query('timeout')) },
  'services restart'    => sub { ('POST', service() . '/restart' . query('duration')) },
  'services logs'       => sub { ('GET', service() . '/logs' . query('lines', 'duration')) },
  'services signal'     => sub { ('POST', '/v1/services/signal', object(name => string(name()), signal => string(name()))) },
  'checkpoints list'    => sub { ('GET', '/v1/checkpoints') },
  'checkpoints create'  => sub { ('POST', '/v1/checkpoint', object(optional('comment'))) },
  'checkpoints get'     => sub { ('GET', '/v1/checkpoints/' . escape(name())) },
  'checkpoints delete'  => sub { ('DELETE', '/v1/checkpoints/' . escape(name())) },
  'checkpoints restore' => sub { ('POST', '/v1/checkpoints/' . escape(name()) . '/restore') },
  'tasks list'          => sub { ('GET', '/v1/tasks') },
  'tasks get'           => sub { ('GET', '/v1/tasks/' . escape(name())) },
  'tasks delete'        => sub { ('DELETE', '/v1/tasks/' . escape(name())) },
  'tasks create'        => sub { ('POST', '/v1/tasks', object(name => string(name()), optional('expire'))) },
  'tasks update'        => sub { ('PUT', '/v1/tasks/' . escape(name()), object(optional('expire'))) },
);
my $ask = $asked{"$area " . ($verb // '')} or refuse('no such command: ' . join ' ', $area, $verb // ());
my ($method, $path, $body) = $ask->();
refuse("not understood: @named") if @named;
refuse("unknown option: --$_") for sort keys %option;
exit ask($method, $path, $body);

sub refuse {
  print STDERR "sprite-env: $_[0]\n\n$usage";
  exit 2;
}

sub name { return shift(@named) // refuse('a name is missing') }

sub service { return '/v1/services/' . escape(name()) }

sub escape { return $_[0] =~ s/([^A-Za-z0-9_.~-])/sprintf '%%%02X', ord $1/ger }

sub query {
  my @pairs = map { my $key = $_; map { "$key=" . escape($_) } @{delete $option{$key} // []} } @_;
  return @pairs ? '?' . join('&', @pairs) : '';
}

sub string {
  my $text = $_[0] =~ s/(["\\])/\\$1/gr;
  $text =~ s/([\x00-\x1f])/sprintf '\\u%04x', ord $1/ge;
  return qq("$text");
}

sub object {
  my @parts;
  while (my ($key, $value) = splice @_, 0, 2) { push @parts, string($key) . ":$value" }
  return '{' . join(',', @parts) . '}';
}

# The last one given counts.
sub optional {
  my ($key, $as) = @_;
  my $given = delete $option{$key} or return ();
  return ($as // $key, string($given->[-1]));
}

# Words of one option may be parted by commas; those that hold a comma have an option that is given for each.
sub words {
  my ($parted, $single) = @_;
  my @all = map { split /,/ } @{delete $option{$parted} // []};
  push @all, @{delete $option{$single} // []} if $single;
  return '[' . join(',', map { string($_) } @all) . ']';
}

sub definition {
  my @env;
  for (@{delete $option{env} // []}) {
    my ($key, $value) = /^([^=]+)=(.*)$/s or refuse('--env must be KEY=VALUE');
    push @env, $key, string($value);
  }
  my $port = delete $option{'http-port'};
  refuse('--http-port must be a number') if $port && $port->[-1] !~ /^\d{1,5}$/;
  return object(
    optional('cmd'), args => words('args', 'arg'), needs => words('needs'), optional('dir'),
    $port ? (http_port => $port->[-1] + 0) : (), @env ? (env => object(@env)) : (),
  );
}

# What the answer holds is printed as it comes. By HTTP 1.0, whose answers end with the connection.
sub ask {
  my ($method, $path, $body) = @_;
  $body //= '';
  socket(my $platform, 1, 1, 0) or die "socket: $!\n";
  if (!connect($platform, pack('S a*', 1, $socket))) {
    print STDERR "sprite-env: the platform does not answer on $socket: $!\n";
    return 1;
  }
  my $head = "$method $path HTTP/1.0\r\nHost: sprite\r\nContent-Length: " . length($body) . "\r\n";
  $head .= "Content-Type: application/json\r\n" if $body ne '';
  syswrite $platform, "$head\r\n$body";
  my $status = (<$platform> // '') =~ m{^HTTP/1\.\d (\d+)} ? $1 : 0;
  while (defined(my $line = <$platform>)) { last if $line eq "\r\n" }
  my $is_good = $status >= 200 && $status < 300;
  my $out = $is_good ? \*STDOUT : \*STDERR;
  my $last = '';
  $| = 1;
  while (defined(my $line = <$platform>)) {
    print $out $line;
    $last = $line;
  }
  print $out "\n" if $last ne '' && $last !~ /\n\z/;
  print STDERR "sprite-env: the platform broke off\n" if !$status;
  # A stream that ends with an error began as a success.
  return $is_good && $last !~ /"type":"error"/ ? 0 : 1;
}

sub run_curl {
  my @options = map { m{^/} ? "http://sprite$_" : $_ } @_;
  { exec 'curl', '--unix-socket', $socket, '-sS', @options }
  print STDERR "sprite-env: curl is not installed here\n";
  exit 127;
}
