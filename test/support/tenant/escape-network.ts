// Attempts to use the network in ways that a box must not, and to use up what all boxes share.
import { type Attempt, refusal, row } from './attempt.ts'

const families = {
  packet: 17,
  vsock: 40,
  alg: 38,
  xdp: 44,
  bluetooth: 31,
  can: 29,
  tipc: 30,
  key: 15,
  rds: 21,
  qipcrtr: 42,
  smc: 43,
  nfc: 39,
}
const header = (bytes: number) => `"\\0" x ${bytes}`

export const network: Attempt[] = [
  ...Object.entries(families).map(([name, family]) =>
    row(`opens a socket of the family ${name}`, `open_socket(${family}, 3, 0)`, /^refused 97$/),
  ),
  row('sends raw ICMP', `open_socket(2, 3, 1)`, /^refused 1$/),
  row('sends raw IP', `open_socket(2, 3, 255)`, /^refused 1$/),
  row('sends raw ICMPv6', `open_socket(10, 3, 58)`, /^refused 1$/),
  row('adds a network interface', `netlink(0, 16, ${header(16)})`, /^refused 1$/),
  row('adds an address', `netlink(0, 20, ${header(8)})`, /^refused 1$/),
  row('adds a route', `netlink(0, 24, ${header(12)})`, /^refused 1$/),
  row('adds a neighbour', `netlink(0, 28, ${header(12)})`, /^refused 1$/),
  row('adds a traffic class', `netlink(0, 36, ${header(20)})`, /^refused 1$/),
  row('adds a firewall table', `netlink(12, 10 << 8, ${header(4)})`, /^refused 1$/),
  row('flushes tracked connections', `netlink(12, 1 << 8 | 2, ${header(4)})`, /^refused 1$/),
  row('reconfigures auditing', `netlink(9, 1001, ${header(40)})`, /^refused (1|93|111)$/),
  row('marks packets', `option(1, 36)`, /^refused 1$/),
  row('sends from foreign addresses', `option(0, 19)`, /^refused 1$/),
  row('exceeds the limit of socket buffers', `option(1, 33)`, /^refused 1$/),
  row(
    'shuts down an interface',
    `socket(my $s, 2, 2, 17); my $r = pack('a16 s x22', 'lo', 0); ioctl($s, 0x8914, $r) ? 'allowed' : refused()`,
    /^refused 1$/,
  ),
  row(
    'connects to an abstract socket of the host',
    `socket(my $s, 1, 1, 0); connect($s, pack('S a*', 1, "\\0$given{abstract}")) ? 'allowed' : refused()`,
    /^refused 111$/,
  ),
]

/** Addresses and ports that a box must not reach. */
export function reachAttempts(targets: Record<string, [string, number]>): Attempt[] {
  return Object.entries(targets).map(([name, [address, port]]) =>
    row(`connects to ${name}`, `reach('${address}', ${port})`),
  )
}

const some = /^bounded [1-9]\d*$/
/** The kernel may end the program before it sees an error. */
const someOrKilled = /^bounded [1-9]\d*$|^refused signal 9$/
const openAll = (mode: string, path: string) =>
  `my @o; bounded($most, sub { open(my $f, '${mode}', '${path}') or return 0; push @o, $f })`

/** Programs that use up a resource. The most that a box may get of it is in `$most`. */
const exhaustion: [name: string, most: number, code: string, expected: RegExp][] = [
  ['terminals', 256, openAll('+<', '/dev/ptmx'), some],
  ['inotify instances', 1024, `bounded($most, sub { sys('inotify_init1', 0) =~ /^allowed/ })`, some],
  ['open files', 1 << 20, openAll('<', '/dev/null'), someOrKilled],
  [
    'neighbours',
    512,
    `my $to = neighbours() // return 'bounded 1'; bounded($most, sub { send_to($to . pack('n', $_[0]), 9) })`,
    some,
  ],
  ['tracked connections', 8192, `my $to = gateway(); bounded($most, sub { send_to($to, 1024 + $_[0]) })`, some],
  ['memory', 2, `my $bytes = 3 << 30; my $all = 'x' x $bytes; 'allowed ' . length $all`, refusal],
  ['memory by files in /dev/shm', 10, `fill('/dev/shm/fill', $most)`, someOrKilled],
  ['processes', 250, `setpgrp; bounded($most, sub { my $p = fork; $p // return 0; $p || sleep_on() })`, someOrKilled],
]

export const exhausting: Attempt[] = exhaustion.map(([name, most, code, expected]) => ({
  name: `uses up ${name}`,
  code: `my $most = ${most}; ${code}`,
  expected,
  alone: true,
}))
