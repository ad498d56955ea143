import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import type { Home } from '../../src/drivers/host/home.ts'
import { baseEnvironment } from '../../src/drivers/host/process.ts'
import { driverProgram } from '../../src/drivers/host/program.ts'
import { privateNetworkConfig } from '../../src/drivers/network/private.ts'
import { machineAddress } from '../../src/model/network.ts'

/** A network namespace in which tests run programs of the host. */
export interface Inside {
  /** Returns the output of the command. */
  run(...argv: string[]): Promise<string>
  /** Starts a Perl program and waits until it has printed something. */
  start(script: string, ...args: string[]): Promise<ChildProcessWithoutNullStreams>
  /** Starts a server that sends `word` to every client, on all addresses unless one is given. */
  serve(port: number, word: string, address?: string): Promise<void>
  /** Connects and returns what the server sent. */
  reach(address: string, port: number, from?: string): Promise<string>
  /** Connects with a short timeout, for servers that must not be reachable. */
  tryReach(address: string, port: number, from?: string): Promise<string>
  /** Ends all processes of the namespace. */
  leave(): Promise<void>
}

export interface PlainMachine extends Omit<Inside, 'leave'> {
  pid: number
  address: string
  stop(): Promise<void>
}

// Follows the start of a box: one process stays in the new network namespace, and another sets it up from both sides.
const program = `
  use strict;
  our (%namespace, $machine);
  my ($directory, $file, $arch) = @ARGV;
  require "$directory/$_" for qw(box/lib.pl network/netlink.pl network/private.pl);
  $machine = $arch;
  my %config = map { split / /, $_, 2 } split /\\n/, read_file($file);
  open(my $outside, '<', '/proc/self/ns/net') or die;
  call('unshare', $namespace{net});
  bring_up('lo');
  my $main = $$;
  my $child = fork // die;
  if (!$child) {
    open(my $inside, '<', '/proc/self/ns/net') or die;
    call('setns', fileno $outside, $namespace{net});
    connect_private($main, %config);
    call('setns', fileno $inside, $namespace{net});
    connect_private_inside(%config);
    exit 0;
  }
  waitpid $child, 0;
  exit 1 if $?;
  $| = 1;
  print "up\\n";
  <STDIN>;
`

const server = `
  use strict; use Socket qw(:DEFAULT inet_pton);
  my ($port, $word, $address) = @ARGV;
  socket(my $s, AF_INET6, SOCK_STREAM, 6) or die; setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($s, sockaddr_in6($port, inet_pton(AF_INET6, $address))) or die "bind: $!"; listen($s, 50) or die;
  $| = 1; print "up\\n";
  while (accept(my $c, $s)) { syswrite $c, $word; close $c }
`

const client = `
  use strict; use Socket qw(:DEFAULT inet_pton);
  my ($address, $port, $from, $seconds) = @ARGV;
  alarm $seconds;
  my $family = $address =~ /:/ ? AF_INET6 : AF_INET;
  my $at = sub { $family == AF_INET6 ? sockaddr_in6($_[1], inet_pton(AF_INET6, $_[0])) : sockaddr_in($_[1], inet_aton($_[0])) };
  socket(my $s, $family, SOCK_STREAM, 6) or die;
  if ($from) { setsockopt($s, 41, 78, 1); bind($s, $at->($from, 0)) or die "bind: $!" } # as free as anybody inside is
  my $word = "";
  connect($s, $at->($address, $port)) and sysread($s, $word, 99) and print $word;
`

/** Creates a network namespace with a machine's links to this host, or to the namespace of a process. */
export async function startPlainMachine(
  home: Home,
  networkNumber: number,
  slot: number,
  hostPid = process.pid,
): Promise<PlainMachine> {
  const file = `${home.path}/plain-${slot}.conf`
  const config = Object.entries(privateNetworkConfig(home, networkNumber, slot))
  writeFileSync(file, config.map(([key, value]) => `${key} ${value}\n`).join(''))
  const directory = driverProgram('').replace(/\/$/, '')
  const argv = ['-t', String(hostPid), '-n', 'perl', '-e', program, directory, file, process.arch]
  const holder = spawn('nsenter', argv, { env: baseEnvironment })
  await saysUp(holder)
  const { leave, ...inside } = insideOf(holder.pid!)
  return {
    ...inside,
    pid: holder.pid!,
    address: machineAddress(home.number, networkNumber, slot),
    async stop() {
      await leave()
      await endAll([holder])
    },
  }
}

/** Uses the network namespace of a process. */
export function insideOf(pid: number): Inside {
  const children: ChildProcess[] = []
  const enter = (...argv: string[]) => spawn('nsenter', ['-t', String(pid), '-n', ...argv], { env: baseEnvironment })

  async function run(...argv: string[]): Promise<string> {
    const child = enter(...argv)
    let out = ''
    child.stdout.on('data', (data) => {
      out += data
    })
    await once(child, 'close')
    return out
  }

  async function start(script: string, ...args: string[]): Promise<ChildProcessWithoutNullStreams> {
    const child = enter('perl', '-e', script, ...args)
    children.push(child)
    await saysUp(child)
    return child
  }

  return {
    run,
    start,
    async serve(port, word, address = '::') {
      await start(server, String(port), word, address)
    },
    reach: (address, port, from = '') => run('perl', '-e', client, address, String(port), from, '20'),
    tryReach: (address, port, from = '') => run('perl', '-e', client, address, String(port), from, '1'),
    leave: () => endAll(children),
  }
}

async function endAll(children: ChildProcess[]): Promise<void> {
  const ends = children.map((child) => (child.exitCode ?? child.signalCode) !== null || once(child, 'exit'))
  for (const child of children) child.kill('SIGKILL')
  await Promise.all(ends)
}

async function saysUp(child: ChildProcess): Promise<void> {
  let err = ''
  child.stderr!.on('data', (data) => {
    err += data
  })
  await new Promise<void>((resolve, reject) => {
    child.stdout!.once('data', () => resolve())
    child.once('close', (code) => reject(new Error(`ended with ${code}: ${err}`)))
  })
}
