// Traffic of machines under the network policies of their app. A network namespace beside the host represents the
// internet.
import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import { existsSync } from 'node:fs'
import { connect } from 'node:net'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { networkTable } from '../../../src/drivers/box/network.ts'
import { removeCgroups } from '../../../src/drivers/host/cgroup.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import { privateTable } from '../../../src/drivers/network/private-rules.ts'
import type { MachineSpec } from '../../../src/model/app/machine-spec.ts'
import type { TrafficPolicy } from '../../../src/model/app/network-policy.ts'
import { boxAddress, machineAddress, resolverAddress, serviceAddress } from '../../../src/model/network.ts'
import { type MachineBench, openMachineBench, waiting } from '../../support/machine-bench.ts'
import { type Neighbor, startNeighbor } from '../../support/neighbor.ts'
import { type Inside, insideOf } from '../../support/private-network.ts'
import { until } from '../../support/until.ts'

const internet = '203.0.113.130'
const [open, closed] = [8080, 9090]

let outside: Neighbor
let world: Inside
let bench: MachineBench
let left: Inside[] = []

const ports = (tcp: number[] = [], udp: number[] = []) => ({ tcp, udp })

describe.runIf(isRoot())('a machine under network policies', () => {
  beforeAll(async () => {
    outside = await startNeighbor(['203.0.113.129/25'], [`${internet}/25`], ['sh', '-c', 'echo up; exec cat'])
    world = insideOf(outside.machine.pid!)
    for (const port of [open, closed]) await world.serve(port, `outside ${port}`)
    bench = await openMachineBench()
  })

  afterEach(async () => {
    for (const inside of left) await inside.leave()
    left = []
  })

  afterAll(async () => {
    await bench?.remove()
    await world?.leave()
    outside?.machine.kill('SIGKILL')
  })

  test('sends to allowed ports and replies to allowed clients', async () => {
    const friend = await start()
    const held = await start({ egress: ports([open]) })
    expect(await held.reach(internet, open)).toBe(`outside ${open}`)
    expect(await held.tryReach(internet, closed)).toBe('')
    await friend.serve(closed, 'friend')
    await held.serve(closed, 'held')
    expect(await held.tryReach(friend.address, closed)).toBe('')
    expect(await friend.reach(held.address, closed)).toBe('held')
    expect(await friend.reach(internet, closed)).toBe(`outside ${closed}`)
  })

  test('is reachable at allowed ports, and by the platform at all ports', async () => {
    const friend = await start()
    const held = await start({ ingress: ports([open]) })
    for (const port of [open, closed]) await held.serve(port, `held ${port}`)
    await friend.serve(closed, 'friend')
    expect(await friend.reach(held.address, open)).toBe(`held ${open}`)
    expect(await friend.tryReach(held.address, closed)).toBe('')
    expect(await held.reach(friend.address, closed)).toBe('friend')
    expect(await held.reach(internet, closed)).toBe(`outside ${closed}`)
    await until(() => connects(boxAddress(bench.home.number, held.spec.slot), closed))
    await until(() => connects(held.address, closed))
    expect(await held.reach('::1', closed)).toBe(`held ${closed}`)
  })

  test('reaches the platform under any policy', async () => {
    const held = await start({ egress: ports(), ingress: ports() })
    const here = insideOf(process.pid)
    left.push(here)
    const addresses = [resolverAddress(bench.home.number), serviceAddress(bench.home.number, 1, 1)]
    for (const address of addresses) await run('ip', ['-6', 'addr', 'replace', `${address}/128`, 'dev', 'lo', 'nodad'])
    await here.serve(53, 'names', addresses[0])
    await here.serve(closed, 'service', addresses[1])
    expect(await held.reach(addresses[0]!, 53)).toBe('names')
    expect(await held.reach(addresses[1]!, closed)).toBe('service')
    for (const address of addresses) await run('ip', ['-6', 'addr', 'del', `${address}/128`, 'dev', 'lo'])
  })

  test('is restricted by protocol too', async () => {
    const [asked, held] = [await start(), await start({ egress: ports([closed], [open]) })]
    for (const port of [open, closed]) await asked.start(hearDatagrams, String(port))
    await asked.serve(open, 'asked')
    expect(await held.run('perl', '-e', sendDatagrams, asked.address, String(open), '20')).toBe('heard')
    expect(await held.run('perl', '-e', sendDatagrams, asked.address, String(closed), '1')).toBe('')
    expect(await held.tryReach(asked.address, open)).toBe('')
  })

  test('follows a changed policy at once, and is unrestricted without one', async () => {
    const [friend, held] = [await start(), await start()]
    for (const port of [open, closed]) await held.serve(port, `held ${port}`)
    expect(await friend.reach(held.address, closed)).toBe(`held ${closed}`)
    await hold(held, { ingress: ports([open]), egress: ports([closed]) })
    expect(await friend.tryReach(held.address, closed)).toBe('')
    expect(await friend.reach(held.address, open)).toBe(`held ${open}`)
    expect(await held.tryReach(internet, open)).toBe('')
    expect(await held.reach(internet, closed)).toBe(`outside ${closed}`)
    await hold(held, { ingress: ports([closed]) })
    expect(await friend.tryReach(held.address, open)).toBe('')
    expect(await friend.reach(held.address, closed)).toBe(`held ${closed}`)
    expect(await held.reach(internet, open)).toBe(`outside ${open}`)
    await hold(held, {})
    expect(await friend.reach(held.address, open)).toBe(`held ${open}`)
  })

  test('keeps the connections that a new policy allows, and loses the others', async () => {
    const [friend, held] = [await start(), await start()]
    const [kept, lost] = [await converse(friend, held, open), await converse(friend, held, closed)]
    await until(() => kept.ticks() > 0 && lost.ticks() > 0)
    await hold(held, { ingress: ports([open]), egress: ports() })
    const before = kept.ticks()
    await until(() => kept.ticks() > before + 5)
    lost.say('lost')
    kept.say('kept')
    await until(() => kept.heard().includes('kept'))
    expect(lost.heard()).toBe('')
  })

  test('is restricted from its first packet', async () => {
    const rules = `table ip seen { chain packets { type filter hook prerouting priority -400; tcp dport ${closed} counter; }; }`
    await outside.inside('nft', rules)
    const seen = async () =>
      /packets (\d+)/.exec((await outside.inside('nft', 'list', 'table', 'ip', 'seen')).stdout)![1]
    const script = `nc -w 1 ${internet} ${closed} </dev/null; echo tried; ${waiting}`
    const held = await start({ egress: ports([open]) }, { script })
    await bench.untilPrinted(held.spec, 'tried')
    expect(await seen()).toBe('0')
    const free = await start({}, { script })
    await bench.untilPrinted(free.spec, 'tried')
    expect(await seen()).not.toBe('0')
  })

  test('is restricted after a restart of its program', async () => {
    const held = await start({ egress: ports([open]) }, { restart: { policy: 'always', maxRetries: 0 } })
    const pid = await bench.pidOf(held.spec)
    await hold(held, { egress: ports([closed]) })
    process.kill(pid, 'SIGKILL')
    await until(async () => (await bench.pidOf(held.spec)) !== pid)
    const again = await enter(held.spec)
    expect(await again.tryReach(internet, open)).toBe('')
    expect(await again.reach(internet, closed)).toBe(`outside ${closed}`)
  })

  test('follows a policy that changed while it was stopped or suspended', async () => {
    const held = await start({ egress: ports([open]) })
    await bench.machines.freezeMachine(held.spec.id)
    await bench.machines.startMachine({ ...held.spec, policy: { egress: ports([closed]) } })
    expect(await held.tryReach(internet, open)).toBe('')
    expect(await held.reach(internet, closed)).toBe(`outside ${closed}`)
    await bench.machines.stopMachine(held.spec.id, held.spec.stop)
    const { policy: _, ...free } = held.spec
    await bench.machines.startMachine(free)
    expect(existsSync(machinePaths(bench.home, held.spec.id).traffic)).toBe(false)
    expect(await (await enter(free)).reach(internet, open)).toBe(`outside ${open}`)
  })

  test('is restricted after a reboot', async () => {
    const [friend, held] = [await start(), await start({ ingress: ports([open]), egress: ports([closed]) })]
    for (const inside of left.splice(0)) await inside.leave()
    await bench.supervisor.stopTree()
    await removeCgroups(bench.home)
    await run('ip', ['link', 'del', `bn${bench.home.number}-1`])
    for (const table of [networkTable(bench.home), privateTable(bench.home)])
      await run('nft', ['delete', 'table', 'inet', table])
    await bench.supervisor.ensureTree()
    const [other, again] = [await enter(friend.spec), await enter(held.spec)]
    for (const port of [open, closed]) await again.serve(port, `held ${port}`)
    expect(await other.reach(again.address, open)).toBe(`held ${open}`)
    expect(await other.tryReach(again.address, closed)).toBe('')
    expect(await again.reach(internet, closed)).toBe(`outside ${closed}`)
    expect(await again.tryReach(internet, open)).toBe('')
    expect(await other.reach(internet, open)).toBe(`outside ${open}`)
  })
})

interface Held extends Inside {
  spec: MachineSpec
  address: string
}

async function start(policy?: TrafficPolicy, parts: Parameters<MachineBench['newSpec']>[0] = {}): Promise<Held> {
  const network = { number: 1, resolver: resolverAddress(bench.home.number) }
  return enter(await bench.newMachine({ network, ...(policy && { policy }), ...parts }))
}

async function enter(spec: MachineSpec): Promise<Held> {
  const inside = insideOf(await bench.pidOf(spec))
  left.push(inside)
  return { ...inside, spec, address: machineAddress(bench.home.number, 1, spec.slot) }
}

async function hold({ spec }: Held, policy: TrafficPolicy): Promise<void> {
  const { id, network } = spec
  await until(() => bench.machines.applyTrafficPolicy({ id, network: network!, policy }))
}

const hearDatagrams = `
  use strict; use Socket qw(:DEFAULT inet_pton); my ($port) = @ARGV;
  socket(my $s, AF_INET6, SOCK_DGRAM, 17) or die; bind($s, sockaddr_in6($port, inet_pton(AF_INET6, '::'))) or die;
  $| = 1; print "up";
  while (my $from = recv($s, my $x, 99, 0)) { send($s, 'heard', 0, $from) }
`

// Datagrams may be lost, so they are repeated.
const sendDatagrams = `
  use strict; use Socket qw(:DEFAULT inet_pton); my ($address, $port, $seconds) = @ARGV; alarm $seconds;
  socket(my $s, AF_INET6, SOCK_DGRAM, 17) or die; connect($s, sockaddr_in6($port, inet_pton(AF_INET6, $address))) or exit;
  for (;;) {
    send($s, 'x', 0); vec(my $ready = '', fileno $s, 1) = 1; my $x = '';
    if (select($ready, undef, undef, 0.2) > 0 && defined recv($s, $x, 99, 0)) { print $x; exit }
  }
`

// Sends all the time and prints what it receives.
const talker = `
  use strict; use Socket qw(:DEFAULT inet_pton); my ($port) = @ARGV; $| = 1;
  socket(my $s, AF_INET6, SOCK_STREAM, 6) or die; bind($s, sockaddr_in6($port, inet_pton(AF_INET6, '::'))) or die;
  listen($s, 5) or die; print "up\n"; accept(my $c, $s);
  for (;;) {
    syswrite $c, "tick\n"; vec(my $ready = '', fileno $c, 1) = 1;
    if (select($ready, undef, undef, 0.05) > 0) { sysread($c, my $x, 99) or last; print $x }
  }
`

const listener = `
  use strict; use Socket qw(:DEFAULT inet_pton); my ($address, $port) = @ARGV; $| = 1;
  socket(my $s, AF_INET6, SOCK_STREAM, 6) or die; connect($s, sockaddr_in6($port, inet_pton(AF_INET6, $address))) or die;
  print "up\n";
  for (;;) {
    my $ready = ''; vec($ready, $_, 1) = 1 for 0, fileno $s; select($ready, undef, undef, undef);
    if (vec $ready, 0, 1) { sysread(STDIN, my $x, 99) or last; syswrite $s, $x }
    if (vec $ready, fileno $s, 1) { sysread($s, my $x, 999) or last; print $x }
  }
`

/** Opens a connection to a machine that sends without being asked. */
async function converse(from: Held, to: Held, port: number) {
  const heard = collect(await to.start(talker, String(port)))
  const client = await from.start(listener, to.address, String(port))
  const ticks = collect(client)
  return { ticks: () => ticks().split('tick').length - 1, heard, say: (word: string) => client.stdin.write(word) }
}

function collect(child: ChildProcessWithoutNullStreams): () => string {
  let text = ''
  child.stdout.on('data', (data) => {
    text += data
  })
  return () => text
}

function connects(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 1000 }, () => socket.destroy())
    socket.on('timeout', () => socket.destroy(new Error('late'))).on('error', () => undefined)
    socket.on('close', (failed) => resolve(!failed))
  })
}
