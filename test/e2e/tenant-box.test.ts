// Attempts to leave a sandbox and a machine, and to use up what all boxes share. Each is made as root of the box.
import { execFileSync } from 'node:child_process'
import { globSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { networkInterfaces } from 'node:os'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Attempt } from '../support/tenant/attempt.ts'
import { attempts, readResults, renderAttempts } from '../support/tenant/escape.ts'
import { reachAttempts } from '../support/tenant/escape-network.ts'
import { Tenant } from '../support/tenant/platform.ts'
import { until } from '../support/until.ts'

const tenant = new Tenant()
const { berth } = tenant
const servers: Server[] = []
const program = '/attempts.pl'
let machine: string
let all: Attempt[]
const results: Record<'sandbox' | 'machine', Map<string, string>> = { sandbox: new Map(), machine: new Map() }

/** What the kernel reports about all boxes before and after. */
const kernelFiles = ['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/etc/passwd', '/usr/bin/bwrap']
const readKernelFiles = () => kernelFiles.map((file) => readFileSync(file).toString('base64'))
let before: string[]

const names = [...attempts.map(({ name }) => name)]
const reachNames = [
  'the host',
  'its gateway',
  'the API',
  'another sandbox',
  'a machine',
  'a machine in its private network',
  'the metadata service',
  'a private network',
  'a link-local address',
  'the loopback of the host over IPv6',
].map((name) => `connects to ${name}`)

describe.runIf(process.getuid?.() === 0)('a box', () => {
  beforeAll(async () => {
    before = readKernelFiles()
    await tenant.open()
    const config = { ramMB: 512, cpus: 1 }
    await Promise.all([tenant.createSandbox('one', config), tenant.createSandbox('other', config)])
    const listen = 'socket(S, 2, 1, 6); bind(S, pack("S n x12", 2, 7777)); listen(S, 9); accept(C, S), close C while 1'
    await tenant.onSandbox('PUT', '/other/services/web?duration=50ms', { cmd: 'perl', args: ['-e', listen] })
    const listener = await tenant.startMachine({ init: { exec: ['perl', '-e', listen] } })
    const [otherAddress, listenerAddress] = await Promise.all([
      tenant.inSandbox('other', ['hostname', '-I']),
      tenant.inMachine(listener, ['cat', '/etc/hosts']),
    ])
    const found = await targets(otherAddress, listenerAddress)
    all = [...attempts, ...reachAttempts(found.addresses)]
    const given = {
      home: berth.home,
      pid: String(process.pid),
      other_pid: String(found.otherPid),
      abstract: found.abstract,
    }
    machine = await tenant.startMachine({ guest: { cpus: 1, memory_mb: 512 } })
    // What uses up a resource is tried last and by itself, since the kernel may end any program of the box.
    limitProcesses()
    const parts = [all.filter(({ alone }) => !alone), ...all.filter(({ alone }) => alone).map((one) => [one])]
    for (const part of parts) await makeAttempts(renderAttempts(part, given))
  }, 300_000)

  afterAll(async () => {
    for (const server of servers) server.close()
    await tenant.close()
  })

  async function makeAttempts(text: string): Promise<void> {
    const command = ['sh', '-c', `cat > ${program} && perl ${program} 2>&1`]
    const outputs = await Promise.all([
      tenant.inSandbox('one', command, text),
      tenant.inMachine(machine, command, text),
    ])
    const [sandbox, inMachine] = outputs.map(readResults)
    for (const [name, result] of sandbox!) results.sandbox.set(name, result)
    for (const [name, result] of inMachine!) results.machine.set(name, result)
  }

  /** Lowers the limits, since thousands of processes would take long to make. */
  function limitProcesses(): void {
    const number = readFileSync(`${berth.home}/number`, 'utf8')
    const files = globSync([
      `/sys/fs/cgroup/pids/berth-${number}-*/pids.max`,
      `/sys/fs/cgroup/berth-${number}-*/pids.max`,
    ])
    expect(files.length).toBeGreaterThanOrEqual(3)
    for (const file of files) {
      expect(Number(readFileSync(file, 'utf8'))).toBeLessThanOrEqual(4096)
      writeFileSync(file, '250')
    }
  }

  async function targets(other: string, listener: string) {
    const server = createServer((socket) => socket.end())
    const abstract = createServer((socket) => socket.end())
    servers.push(server, abstract)
    const abstractName = `berth-box-${process.pid}`
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve))
    await new Promise<void>((resolve) => abstract.listen(`\0${abstractName}`, resolve))
    const { port } = server.address() as { port: number }
    const own = Object.values(networkInterfaces()).flatMap((list) => list ?? [])
    const host = own.find(
      ({ family, address, internal }) => family === 'IPv4' && !internal && !address.startsWith('100.'),
    )
    const address = /100\.\d+\.\d+\.\d+/
    const otherAddress = address.exec(other)![0]
    const gateway = otherAddress.replace(/\d+$/, (last) => String(Number(last) - 1))
    const addresses: Record<string, [string, number]> = {
      'the host': [host?.address ?? gateway, port],
      'its gateway': [gateway, port],
      'the API': ['127.0.0.1', Number(new URL(berth.addresses.api).port)],
      'another sandbox': [otherAddress, 7777],
      'a machine': [address.exec(listener)![0], 7777],
      'a machine in its private network': [/fdaa:\S+/.exec(listener)?.[0] ?? 'fdaa::3', 7778],
      'the metadata service': ['169.254.169.254', 80],
      'a private network': ['10.0.0.1', port],
      'a link-local address': ['169.254.1.1', port],
      'the loopback of the host over IPv6': ['::1', Number(new URL(berth.addresses.api).port)],
    }
    const pids = execFileSync('pgrep', ['-f', 'S n x12']).toString().trim().split('\n')
    return { addresses, abstract: abstractName, otherPid: Number(pids[0]) }
  }

  test.each([...names, ...reachNames])('in which a program %s is refused', (name) => {
    const { expected } = all.find((one) => one.name === name)!
    expect(results.sandbox.get(name), 'in a sandbox').toMatch(expected)
    expect(results.machine.get(name), 'in a machine').toMatch(expected)
  })

  test('is attacked in at least 60 ways', () => {
    const expected = all.map(({ name }) => name).sort()
    for (const found of Object.values(results)) expect([...found.keys()].sort()).toEqual(expected)
    expect(all.length).toBeGreaterThanOrEqual(60)
  })

  test('has changed nothing of the host, and the platform and other boxes still work', async () => {
    expect(readKernelFiles()).toEqual(before)
    expect((await berth.call('GET', '/healthz')).status).toBe(200)
    expect(await tenant.inSandbox('other', ['echo', 'here'])).toBe('here\n')
    // Processes that used up something may still be ending.
    await until(async () => (await tenant.inSandbox('one', ['echo', 'here']).catch(() => '')) === 'here\n')
    expect(await tenant.inMachine(machine, ['echo', 'here'])).toBe('here\n')
  })
})
