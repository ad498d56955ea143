import { spawn } from 'node:child_process'
import { createServer, type Server } from 'node:net'
import { setImmediate } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import {
  ensureResolverAddress,
  findPrivateNetworkProblem,
  removePrivateNetworks,
  removeUnusedBridges,
} from '../../../src/drivers/network/private.ts'
import { privateTable } from '../../../src/drivers/network/private-rules.ts'
import { ensureUnreachableRoutes, removeUnreachableRoutes } from '../../../src/drivers/network/unreachable.ts'
import {
  boxAddress,
  gatewayAddress,
  homeAddresses,
  machineAddress,
  networkPrefix,
  privateAddresses,
  resolverAddress,
  serviceAddress,
} from '../../../src/model/network.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, listLinks, openBoxBench } from '../../support/box.ts'
import { type PlainMachine, startPlainMachine } from '../../support/private-network.ts'
import { until } from '../../support/until.ts'

let bench: BoxBench
let started: PlainMachine[] = []
let servers: Server[] = []

describe.runIf(isRoot())('machines of private networks', () => {
  beforeAll(async () => {
    bench = await openBoxBench()
  })

  afterEach(async () => {
    for (const machine of started) await machine.stop()
    for (const server of servers) await new Promise((resolve) => server.close(resolve))
    ;[started, servers] = [[], []]
    await until(() => listLinks().every((link) => !link.startsWith(`bm${bench.home.number}-`)))
  })

  afterAll(async () => {
    await removePrivateNetworks(bench.home)
    await bench.remove()
  })

  test('are available to root', async () => {
    expect(await findPrivateNetworkProblem()).toBeUndefined()
  })

  test('reach each other within one network', async () => {
    const [first, second] = [await start(1, 1), await start(1, 2)]
    await first.serve(80, 'first')
    await second.serve(80, 'second')
    expect(await first.reach(second.address, 80)).toBe('second')
    expect(await second.reach(first.address, 80)).toBe('first')
  })

  test('reach no machine of another network', async () => {
    const [first, stranger] = [await start(1, 1), await start(2, 2)]
    await first.serve(80, 'first')
    await stranger.serve(80, 'stranger')
    await stranger.run('ip', '-6', 'route', 'add', 'fdaa::/16', 'via', gatewayAddress(bench.home.number, 2))
    expect(await stranger.tryReach(first.address, 80)).toBe('')
    expect(await first.tryReach(stranger.address, 80)).toBe('')
  })

  test('reach no machine of another network on a host that forwards packets', async () => {
    const host = spawn('unshare', ['-n', 'sh', '-c', 'echo up; exec cat'])
    await new Promise((resolve) => host.stdout.once('data', resolve))
    const onHost = (...argv: string[]) => run('nsenter', ['-t', String(host.pid), '-n', ...argv])
    try {
      await onHost('sh', '-c', 'ip link set lo up; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding')
      const [first, stranger, friend] = [
        await start(1, 1, host.pid),
        await start(2, 2, host.pid),
        await start(1, 3, host.pid),
      ]
      await first.serve(80, 'first')
      for (const [number, machine] of [first, stranger].entries()) {
        const gateway = gatewayAddress(bench.home.number, number + 1)
        await machine.run('ip', '-6', 'route', 'add', 'fdaa::/16', 'via', gateway)
      }
      expect(await stranger.tryReach(first.address, 80)).toBe('')
      expect(await friend.reach(first.address, 80)).toBe('first')
      // Without the rules they would reach each other.
      await onHost('nft', 'flush', 'ruleset')
      expect(await stranger.reach(first.address, 80)).toBe('first')
    } finally {
      host.kill('SIGKILL')
    }
  })

  test('reach only the resolver and services with an address in their network on the host', async () => {
    const home = bench.home.number
    const [first, stranger] = [await start(1, 1), await start(2, 2)]
    const service = serviceAddress(home, 1, 1)
    await ensureResolverAddress(home)
    await run('ip', ['-6', 'addr', 'replace', `${service}/128`, 'dev', 'lo', 'nodad'])
    try {
      const everywhere = await listenAt('::', 0, 'everywhere')
      await listenAt(resolverAddress(home), 53, 'resolver')
      const ours = await listenAt(service, 0, 'service')
      expect(await first.reach(resolverAddress(home), 53)).toBe('resolver')
      expect(await stranger.reach(resolverAddress(home), 53)).toBe('resolver')
      expect(await first.tryReach(resolverAddress(home), everywhere)).toBe('')
      expect(await first.tryReach(gatewayAddress(home, 1), everywhere)).toBe('')
      expect(await first.tryReach(service, everywhere)).toBe('')
      expect(await first.reach(service, ours)).toBe('service')
      await stranger.run('ip', '-6', 'route', 'add', 'fdaa::/16', 'via', gatewayAddress(home, 2))
      expect(await stranger.tryReach(gatewayAddress(home, 1), everywhere)).toBe('')
      expect(await stranger.tryReach(service, ours)).toBe('')
    } finally {
      await run('ip', ['-6', 'addr', 'del', `${service}/128`, 'dev', 'lo'])
    }
  })

  test('are reachable from the host', async () => {
    const first = await start(1, 1)
    await first.serve(80, 'first')
    await until(async () => (await hostReaches(first.address, 80)) === 'first')
  })

  test('cannot send from the address of another machine', async () => {
    const [first, second, third] = [await start(1, 1), await start(1, 2), await start(1, 3)]
    await second.serve(80, 'second')
    // A failed neighbor discovery would be cached, and nothing else would be sent.
    await first.run('ip', '-6', 'neigh', 'replace', second.address, 'lladdr', await linkAddress(second), 'dev', 'eth1')
    // Spoofs an existing machine, a missing one and one of another network, each with and without adding the address.
    const strange = [third.address, third.address.replace(/3:2$/, '9:2'), 'fdaa:0:77:0:1:0:1:2']
    for (const address of strange) {
      await second.run('ip', '-6', 'neigh', 'replace', address, 'lladdr', '02:bd:00:00:01:02', 'dev', 'eth1')
      const seen = await countPackets(second, address, async () => {
        expect(await first.tryReach(second.address, 80, address)).toBe('')
        await first.run('ip', '-6', 'addr', 'add', `${address}/128`, 'dev', 'eth1', 'nodad')
        expect(await first.tryReach(second.address, 80, address)).toBe('')
        await first.run('ip', '-6', 'addr', 'del', `${address}/128`, 'dev', 'eth1')
      })
      expect(seen).toBe(0)
    }
    expect(await first.reach(second.address, 80, first.address)).toBe('second')
    expect(await countPackets(second, first.address, () => first.reach(second.address, 80))).toBeGreaterThan(0)
  })

  test('send only IPv6 over the link', async () => {
    const [first, second] = [await start(1, 1), await start(1, 2)]
    await second.serve(80, 'second')
    await first.run('ip', 'addr', 'add', '10.99.0.1/24', 'dev', 'eth1')
    await second.run('ip', 'addr', 'add', '10.99.0.2/24', 'dev', 'eth1')
    expect(await first.tryReach('10.99.0.2', 80)).toBe('')
  })

  test('are reachable at once when they take over an address', async () => {
    const first = await start(1, 1)
    for (let round = 0; round < 5; round++) {
      const again = await start(1, 2)
      await again.serve(80, `round ${round}`)
      expect(await first.reach(again.address, 80)).toBe(`round ${round}`)
      await again.stop()
    }
  })

  test('start concurrently in a network that does not exist yet', async () => {
    await removeUnusedBridges(bench.home)
    const machines = await Promise.all([1, 2, 3, 4, 5, 6].map((slot) => start(3, slot)))
    await machines[0]!.serve(80, 'first')
    const words = await Promise.all(machines.map((machine) => machine.reach(machines[0]!.address, 80)))
    expect(new Set(words)).toEqual(new Set(['first']))
  })

  test('can start while unused networks are removed', async () => {
    let over = false
    const sweeping = (async () => {
      while (!over) {
        await removeUnusedBridges(bench.home)
        // Without a bridge there is nothing to wait for, and machines could not start meanwhile.
        await setImmediate()
      }
    })()
    try {
      for (let round = 0; round < 10; round++) {
        const machine = await start(4, 1)
        expect(machine.address).toMatch(/^fdaa:/)
        await machine.stop()
      }
    } finally {
      over = true
      await sweeping
    }
  })

  test('stay isolated when the rules were removed', async () => {
    const [first, second] = [await start(1, 1), await start(1, 2)]
    await first.serve(80, 'first')
    for (const family of ['inet', 'bridge']) await run('nft', ['delete', 'table', family, privateTable(bench.home)])
    const third = await start(1, 3)
    expect(await second.reach(first.address, 80)).toBe('first')
    expect(await third.reach(first.address, 80)).toBe('first')
    expect(await second.tryReach(first.address, 80, third.address)).toBe('')
  })

  test('can move to another network with the same slot', async () => {
    const first = await start(1, 1)
    await first.stop()
    const [moved, friend] = [await start(2, 1), await start(2, 2)]
    await friend.serve(80, 'friend')
    expect(await moved.reach(friend.address, 80)).toBe('friend')
    const { stdout } = await run('nft', ['list', 'set', 'bridge', privateTable(bench.home), 'sources'])
    expect(stdout).toContain(
      `"bm${bench.home.number}-1" . ${networkPrefix(bench.home.number, 2).replace('::/48', ':')}`,
    )
    expect(stdout).not.toContain(
      `"bm${bench.home.number}-1" . ${networkPrefix(bench.home.number, 1).replace('::/48', ':')}`,
    )
  })

  test('and sandboxes do not reach each other', async () => {
    const machine = await start(1, 1000)
    await machine.serve(80, 'machine')
    const [box, other] = [await bench.newBox(), await bench.newBox()]
    serveInBox(other)
    const at = boxAddress(bench.home.number, other.slot)
    await until(async () => (await hostReaches(at, 80)) === 'box')
    expect(await reachFromBox(box, machine.address)).toBe('')
    expect(await reachFromBox(box, at)).toBe('')
    await machine.run('ip', '-6', 'route', 'add', 'default', 'via', gatewayAddress(bench.home.number, 1))
    expect(await machine.tryReach('2001:db8::1', 80)).toBe('')
    expect(await machine.tryReach(at, 80)).toBe('')
  })

  test('have addresses that are unreachable while they are down', async () => {
    const ranges = [homeAddresses(bench.home.number), privateAddresses(bench.home.number).replace('fdaa:0::', 'fdaa::')]
    const ofHome = async () =>
      (await Promise.all(['-4', '-6'].map((family) => run('ip', [family, 'route', 'show', 'type', 'unreachable']))))
        .flatMap(({ stdout }) => stdout.split('\n'))
        .filter((line) => ranges.some((range) => line.includes(` ${range} `)))
    const machine = await start(1, 1)
    await machine.serve(80, 'machine')
    for (const _ of ['once', 'again']) await ensureUnreachableRoutes(bench.home)
    try {
      expect(await ofHome()).toHaveLength(2)
      expect(await hostReaches(machine.address, 80)).toBe('machine')
      await machine.stop()
      await until(() => !listLinks().includes(`bm${bench.home.number}-1`))
      for (const address of [boxAddress(bench.home.number, 900), machineAddress(bench.home.number, 7, 1)])
        await expect(run('ip', ['route', 'get', address])).rejects.toThrow(/unreachable|No route to host/)
    } finally {
      await removeUnreachableRoutes(bench.home)
    }
    expect(await ofHome()).toEqual([])
  })

  test('leave no interfaces or rules', async () => {
    for (const machine of [await start(1, 1), await start(2, 2)]) await machine.stop()
    const ours = () =>
      listLinks().filter((link) => /^b[mn]/.test(link) && link.slice(2).startsWith(`${bench.home.number}-`))
    await until(() => ours().every((link) => link.startsWith('bn')))
    await removeUnusedBridges(bench.home)
    expect(ours()).toEqual([])
    await removePrivateNetworks(bench.home)
    expect((await run('nft', ['list', 'tables'])).stdout).not.toContain(`${privateTable(bench.home)}\n`)
    expect((await run('ip', ['-6', 'addr', 'show', 'dev', 'lo'])).stdout).not.toContain(
      `${resolverAddress(bench.home.number)}/`,
    )
  })
})

async function start(networkNumber: number, slot: number, hostPid?: number): Promise<PlainMachine> {
  const machine = await startPlainMachine(bench.home, networkNumber, slot, hostPid)
  started.push(machine)
  return machine
}

async function listenAt(address: string, port: number, word: string): Promise<number> {
  const server = createServer((socket) => socket.on('error', () => {}).end(word))
  servers.push(server)
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, address, resolve))
  return (server.address() as { port: number }).port
}

async function linkAddress(machine: PlainMachine): Promise<string> {
  return /link\/ether (\S+)/.exec(await machine.run('ip', '-o', 'link', 'show', 'eth1'))![1]!
}

/** Counts the packets from this address that arrive at a machine while the function runs. */
async function countPackets(machine: PlainMachine, from: string, work: () => Promise<unknown>): Promise<number> {
  const rules = `table ip6 seen { chain packets { type filter hook prerouting priority -400; ip6 saddr ${from} counter; }; }`
  await machine.run('nft', rules)
  await work()
  const listed = await machine.run('nft', 'list', 'table', 'ip6', 'seen')
  await machine.run('nft', 'delete', 'table', 'ip6', 'seen')
  return Number(/packets (\d+)/.exec(listed)?.[1])
}

const connectScript = `
  use Socket qw(:DEFAULT inet_pton); my ($address, $port) = @ARGV; alarm 1; my $v6 = $address =~ /:/;
  socket(S, $v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 6);
  connect(S, $v6 ? sockaddr_in6($port, inet_pton(AF_INET6, $address)) : sockaddr_in($port, inet_aton($address)))
    and sysread(S, $x, 99) and print $x`

function hostReaches(address: string, port: number): Promise<string> {
  return new Promise((resolve) => {
    const child = spawn('perl', ['-e', connectScript, address, String(port)])
    let out = ''
    child.stdout.on('data', (data) => {
      out += data
    })
    child.once('close', () => resolve(out))
  })
}

async function reachFromBox(box: BoxSpec, address: string): Promise<string> {
  return (await bench.run(box, ['perl', '-e', connectScript, address, '80'])).out
}

/** Runs until the box ends. */
function serveInBox(box: BoxSpec): void {
  const script = `use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(80, INADDR_ANY)); listen(S, 5); while (accept(C, S)) { syswrite C, 'box'; close C }`
  bench.boxes.spawnInBox(box, { argv: ['perl', '-e', script] }).on('error', () => undefined)
}
