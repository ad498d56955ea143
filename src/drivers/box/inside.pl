#!/usr/bin/perl
# sprite-env: a client of the platform API for programs in a sandbox. It uses no Perl modules, which an image may lack.
# Usage: sprite-env services|checkpoints|tasks|curl ..., see below
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
  else { push @{$option{$1}}, $2 // shift(@words) // usage_error("--$1 needs a value") }
}

my %requests = (
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
my $request = $requests{"$area " . ($verb // '')} or usage_error('no such command: ' . join ' ', $area, $verb // ());
my ($method, $path, $body) = $request->();
usage_error("not understood: @named") if @named;
usage_error("unknown option: --$_") for sort keys %option;
exit send_request($method, $path, $body);

sub usage_error {
  print STDERR "sprite-env: $_[0]\n\n$usage";
  exit 2;
}

sub name { return shift(@named) // usage_error('a name is missing') }

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

# If the option is repeated, the last value counts.
sub optional {
  my ($key, $as) = @_;
  my $given = delete $option{$key} or return ();
  return ($as // $key, string($given->[-1]));
}

# A list from an option with comma-separated values, and one that may be repeated for values that contain commas.
sub words {
  my ($separated, $single) = @_;
  my @all = map { split /,/ } @{delete $option{$separated} // []};
  push @all, @{delete $option{$single} // []} if $single;
  return '[' . join(',', map { string($_) } @all) . ']';
}

sub definition {
  my @env;
  for (@{delete $option{env} // []}) {
    my ($key, $value) = /^([^=]+)=(.*)$/s or usage_error('--env must be KEY=VALUE');
    push @env, $key, string($value);
  }
  my $port = delete $option{'http-port'};
  usage_error('--http-port must be a number') if $port && $port->[-1] !~ /^\d{1,5}$/;
  return object(
    optional('cmd'), args => words('args', 'arg'), needs => words('needs'), optional('dir'),
    $port ? (http_port => $port->[-1] + 0) : (), @env ? (env => object(@env)) : (),
  );
}

# Prints the response as it arrives. HTTP 1.0 responses end with the connection, so they need no decoding.
sub send_request {
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
  print STDERR "sprite-env: the connection to the platform was lost\n" if !$status;
  # A stream has status 200 even when its last event is an error.
  return $is_good && $last !~ /"type":"error"/ ? 0 : 1;
}

sub run_curl {
  my @options = map { m{^/} ? "http://sprite$_" : $_ } @_;
  { exec 'curl', '--unix-socket', $socket, '-sS', @options }
  print STDERR "sprite-env: curl is not installed here\n";
  exit 127;
}
