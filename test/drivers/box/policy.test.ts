// The hosts that a box with a network policy reaches. A network namespace beside the host plays the internet: it resolves
// every name to one of its addresses, and greets every client.
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { networkTable } from '../../../src/drivers/box/network.ts'
import { isRoot, run } from '../../../src/drivers/host/process.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import type { NetworkRule } from '../../../src/model/sandbox/policy.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { startNeighbor } from '../../support/neighbor.ts'
import { until } from '../../support/until.ts'

const names = '198.51.100.2'
const addressOf = { 'good.example': '198.51.100.10', 'bad.example': '198.51.100.11', 'near.example': '10.214.0.2' }
const port = 8099

let outside: { machine: ChildProcess; resolver: ChildProcess }
let bench: BoxBench
let box: BoxSpec

describe.runIf(isRoot())('a box with a policy', () => {
  beforeAll(async () => {
    outside = await startOutside()
    bench = await openBoxBench(undefined, undefined, [names])
    box = await bench.newBox()
  })

  afterAll(async () => {
    await bench?.remove()
    outside?.resolver.kill('SIGKILL')
    outside?.machine.kill('SIGKILL')
  })

  test('reaches all public addresses without rules', async () => {
    expect(await reached('198.51.100.10')).toBe('reached')
    expect(await shown()).toEqual({ rules: [] })
  })

  test('resolves and reaches only allowed names', async () => {
    await setRules({ domain: 'good.example', action: 'allow' })
    expect(await resolved('good.example')).toBe('198.51.100.10')
    expect(await reached('198.51.100.10')).toBe('reached')
    expect(await resolve('bad.example')).toBe('')
    expect(await resolve('sub.good.example')).toBe('')
    expect(await reach('198.51.100.11')).toBe('')
  })

  test('gets policy-filtered DNS answers from any name server', async () => {
    expect(await resolve('bad.example', names)).toBe('')
    expect(await resolved('good.example', '9.9.9.9')).toBe('198.51.100.10')
  })

  test('is subject to a changed policy at once', async () => {
    await setRules({ domain: '*', action: 'allow' }, { domain: 'good.example', action: 'deny' })
    expect(await reach('198.51.100.10')).toBe('')
    expect(await resolve('good.example')).toBe('')
    expect(await resolved('bad.example')).toBe('198.51.100.11')
    expect(await reached('198.51.100.11')).toBe('reached')
  })

  test('is subject to the later of two simultaneous policies', async () => {
    const [first, second] = (['allow', 'deny'] as const).map((action) => {
      const rules: NetworkRule[] = [
        { domain: '*', action: 'allow' },
        { domain: 'good.example', action },
      ]
      return { ...box, policy: { rules } }
    })
    await Promise.all([bench.boxes.ensureBox(first!), bench.boxes.ensureBox(second!)])
    box = second!
    expect(await resolve('good.example')).toBe('')
  })

  test('does not reach private addresses, even by an allowed name', async () => {
    await resolve('near.example')
    expect(await reach('10.214.0.2')).toBe('')
  })

  test('shows the policy in a file', async () => {
    expect((await shown()).rules).toHaveLength(2)
  })

  test('is still subject to it after a restart without rules in the kernel', async () => {
    await bench.boxes.stopBox(box.id)
    await run('nft', ['delete', 'table', 'inet', networkTable(bench.home)])
    await bench.supervisor.startService(`sandbox-${box.id}`)
    await bench.pidOf(box)
    expect(await reach('198.51.100.10')).toBe('')
    await until(async () => (await resolve('bad.example')) === '198.51.100.11')
    expect(await reached('198.51.100.11')).toBe('reached')
  })

  test('reaches everything again when the rules are removed', async () => {
    await setRules()
    expect(await reached('198.51.100.10')).toBe('reached')
    expect(bench.supervisor.listServices()).not.toContain(`sandbox-${box.id}-names`)
    expect(await shown()).toEqual({ rules: [] })
  })

  test('leaves nothing behind when it is removed', async () => {
    await setRules({ domain: 'good.example', action: 'allow' })
    await bench.boxes.removeBox(box)
    const { stdout } = await run('nft', ['list', 'table', 'inet', networkTable(bench.home)])
    expect(stdout).not.toMatch(/policy-|names-|elements/)
    expect(existsSync(`${bench.home.tree}/sandbox-${box.id}-names`)).toBe(false)
  })
})

async function shown(): Promise<{ rules: NetworkRule[] }> {
  return JSON.parse((await bench.sh(box, 'cat /.sprite/policy/network.json')).out)
}

async function setRules(...rules: NetworkRule[]): Promise<void> {
  box = { ...box, policy: { rules } }
  await bench.boxes.ensureBox(box)
}

// Dropped packets only end in a timeout, so that is short where no answer is expected.
const inVain = 2
const patient = 30

const reached = (address: string) => reach(address, patient)
const resolved = (name: string, server?: string) => resolve(name, server, patient)

/** The greeting, or an empty string. */
async function reach(address: string, seconds = inVain): Promise<string> {
  const script = `use Socket; alarm ${seconds}; socket(S, 2, 1, 6); connect(S, sockaddr_in(${port}, inet_aton('${address}'))) and sysread(S, $x, 9) and print $x`
  return (await bench.run(box, ['perl', '-e', script])).out
}

/** Sends a DNS query itself, independent of the resolver configuration of the box. */
async function resolve(name: string, server = names, seconds = inVain): Promise<string> {
  const script = `
    use Socket; alarm ${seconds}; $x = ''; socket(S, 2, 2, 17); connect(S, sockaddr_in(53, inet_aton('${server}')));
    my $question = pack('n6', 7, 0x100, 1, 0, 0, 0) . join('', map { pack('C/a*', $_) } split /\\./, '${name}') . pack('Cnn', 0, 1, 1);
    # A query is repeated like in any resolver, because it may be lost or sent before the server listens.
    until (length $x) {
      syswrite S, $question;
      vec(my $ready = '', fileno S, 1) = 1;
      select($ready, undef, undef, 0.5) > 0 or next;
      sysread(S, $x, 512) or select undef, undef, undef, 0.1;
    }
    unpack('n', substr $x, 6) and print inet_ntoa(substr $x, -4)`
  return (await bench.run(box, ['perl', '-e', script])).out
}

async function startOutside() {
  const serve = `use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(${port}, INADDR_ANY)); listen(S, 5); $| = 1; print "up"; while (accept(C, S)) { syswrite C, "reached"; close C }`
  const { machine, inside } = await startNeighbor(
    ['198.51.100.1/24', '10.214.0.1/24'],
    [names, ...Object.values(addressOf)].map((address) => `${address}/24`),
    ['perl', '-e', serve],
  )
  const records = Object.entries(addressOf).map(([name, address]) => `--address=/${name}/${address}`)
  const options = [
    '--keep-in-foreground',
    '--no-resolv',
    '--no-hosts',
    '--pid-file=',
    '--conf-file=/dev/null',
    ...records,
  ]
  const resolver = spawn('nsenter', ['-t', String(machine.pid), '-n', 'dnsmasq', ...options], { stdio: 'ignore' })
  await until(async () => {
    const { stdout } = await inside('cat', '/proc/net/udp')
    return stdout.includes(':0035 ')
  })
  return { machine, resolver }
}
