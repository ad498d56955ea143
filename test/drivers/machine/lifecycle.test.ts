import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { boxNetwork } from '../../../src/drivers/box/network.ts'
import { cgroupDriver } from '../../../src/drivers/host/cgroup.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { listProcesses } from '../../../src/drivers/host/process-list.ts'
import { type LogLine, MachineStartError } from '../../../src/drivers/machine/driver.ts'
import { machineDriver } from '../../../src/drivers/machine/lifecycle.ts'
import { machinePaths } from '../../../src/drivers/machine/paths.ts'
import type { MachineSpec } from '../../../src/model/app/machine-spec.ts'
import { boxAddress } from '../../../src/model/network.ts'
import { listLinks } from '../../support/box.ts'
import { type MachineBench, openMachineBench, waiting } from '../../support/machine-bench.ts'
import { isRunning } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const isFull = isRoot()
const hasGroups = cgroupDriver().cgroupsAvailable()
let bench: MachineBench

beforeAll(async () => {
  bench = await openMachineBench()
})
afterAll(() => bench?.remove())

/** Lists the names of processes with a uid of the machine's range. */
function processesOf({ slot }: MachineSpec): string[] {
  const first = bench.home.uidStart + slot * 65_536
  const uidOf = (pid: number) => Number(/^Uid:\t(\d+)/m.exec(readProc(pid, 'status'))?.[1] ?? -1)
  const found = listProcesses().filter(({ pid }) => isFull && uidOf(pid) >= first && uidOf(pid) < first + 65_536)
  return found.map(({ name }) => name)
}

/** Waits, because a new process has the name of its parent until it calls exec. */
function untilListed(spec: MachineSpec, ...commands: string[]): Promise<void> {
  return until(async () => {
    const listed = (await bench.machines.listProcesses(spec.id)).map(({ command }) => command)
    return commands.every((command) => listed.includes(command))
  })
}

function readProc(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8')
  } catch {
    return ''
  }
}

describe('a start', () => {
  test('runs the program of the image, and does nothing if it is already running', async () => {
    const spec = await bench.newMachine()
    const pid = await bench.pidOf(spec)
    expect(bench.look(spec)).toMatchObject({ is: 'up', frozen: false, exits: [] })
    await Promise.all([bench.machines.startMachine(spec), bench.machines.startMachine(spec)])
    expect(await bench.pidOf(spec)).toBe(pid)
    await bench.untilPrinted(spec, 'ready')
    expect(bench.machines.inspectMachine(spec.id, 'another')).toEqual({ is: 'down', exits: [] })
    expect(bench.machines.inspectMachine('00000000000000', 'first')).toEqual({ is: 'absent' })
  })

  test('of another version stops the previous one and forgets its exits', async () => {
    const spec = await bench.newMachine({ script: `${waiting}; exit 7` })
    await bench.machines.stopMachine(spec.id, spec.stop)
    expect(bench.exits(spec)).toHaveLength(1)
    await bench.machines.startMachine(spec)
    const pid = await bench.pidOf(spec)
    const second = { ...spec, instanceId: 'second', argv: ['sh', '-c', `echo second; ${waiting}`] }
    await bench.machines.startMachine(second)
    expect(isRunning(pid)).toBe(false)
    expect(bench.look(second)).toMatchObject({ is: 'up', exits: [] })
    expect(bench.look(spec)).toEqual({ is: 'down', exits: [] })
    await bench.untilPrinted(spec, 'second')
  })

  test('succeeds when the program exits at once, and records the exit', async () => {
    const spec = await bench.newMachine({ script: 'echo done; exit 3' })
    await until(() => bench.look(spec).is === 'down')
    expect(bench.exits(spec)).toMatchObject([
      { number: 1, exitCode: 3, signal: 0, oomKilled: false, requested: false, restarting: false },
    ])
    expect(Math.abs(bench.exits(spec)[0]!.at - Date.now())).toBeLessThan(60_000)
    await bench.untilPrinted(spec, 'exited with code 3')
  })

  test.each([
    [['no-such-program'], 127, 'exec: "no-such-program": not found'],
    [['/no/such'], 127, 'exec: "/no/such": not found'],
    [['/etc/passwd'], 126, 'exec: "/etc/passwd": permission denied'],
    [['/bin'], 126, 'exec: "/bin": permission denied'],
  ])('of %j exits with %i and logs the reason', async (argv, code, line) => {
    const spec = await bench.newMachine({ argv })
    await until(() => bench.look(spec).is === 'down')
    expect(bench.exits(spec)).toMatchObject([{ exitCode: code, signal: 0 }])
    await until(async () => (await bench.machines.readLog(spec.id, 10)).some((said) => said.text === line))
    expect((await bench.machines.readLog(spec.id, 10)).find(({ text }) => text === line)?.stream).toBe('platform')
  })

  test('writes its host names and resolver configuration', async () => {
    const plain = await bench.newMachine()
    expect((await bench.sh(plain, 'cat /etc/hosts')).out).toMatch(/^127\.0\.0\.1 localhost machine-\d+$/m)
    const dns = {
      nameservers: ['192.0.2.1', '2001:db8::1'],
      searches: ['a.internal', 'b'],
      options: ['ndots:2', 'rotate'],
    }
    const spec = await bench.newMachine({ hostname: 'web', fqdn: 'web.example.com', dns })
    const { out } = await bench.sh(spec, 'hostname; cat /etc/hostname /etc/hosts /etc/resolv.conf')
    expect(out).toMatch(/^web\nweb\n127\.0\.1\.1 web\.example\.com web\n127\.0\.0\.1 localhost\n/)
    if (isFull)
      expect(out).toContain(
        'nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a.internal b\noptions ndots:2 rotate\n',
      )
  })

  test.each([undefined, '-> etc', '-> /proc/1', 'a file'])(
    'mounts the socket directory read-only, although the image has %j at its path',
    async (link) => {
      const spec = bench.newSpec()
      const layers = link === undefined ? spec.layers : [...spec.layers, bench.newLayer({ '.fly': link })]
      await bench.machines.startMachine({ ...spec, layers })
      const { inside } = machinePaths(bench.home, spec.id)
      writeFileSync(`${inside}/api`, 'socket')
      const { out, err } = await bench.sh(spec, 'cat /.fly/api; ls -a /.fly | wc -l; rm /.fly/api; ls /etc/passwd')
      expect(out).toMatch(/^socket3\n\/etc\/passwd\n$/)
      expect(err).toContain('Read-only file system')
    },
  )

  test('that cannot succeed reports why and leaves no process', async () => {
    const missing = bench.newSpec({ user: 'nobody-of-this-name' })
    await expect(bench.machines.startMachine(missing)).rejects.toThrow('there is no user nobody-of-this-name')
    expect(bench.look(missing)).toEqual({ is: 'down', exits: [] })
    const gone = bench.newSpec({ layers: [`${bench.directory}/no-such-layer`] })
    await expect(bench.machines.startMachine(gone)).rejects.toThrow('No such file')
    const refusal = (spec: MachineSpec) => bench.machines.startMachine(spec).catch((error) => error.constructor)
    expect(await refusal({ ...missing, instanceId: 'again' })).toBe(MachineStartError)
    expect(await refusal({ ...missing, instanceId: 'odd', hostname: 'a b' })).toBe(MachineStartError)
    // Missing layers may exist at the next attempt.
    expect(await refusal(gone)).toBe(Error)
    await bench.machines.startMachine({ ...missing, user: '' })
    expect(bench.look(missing).is).toBe('up')
  })

  test('is refused on hosts without isolation', async () => {
    const { home, supervisor, volumes } = bench
    const isolation = { kind: 'none', network: 'host' } as const
    const ability = { mode: 'none', network: false, isolation, why: 'the kernel does not let us' } as const
    const machines = machineDriver({ home, supervisor, volumes, cgroups: cgroupDriver(), ability })
    await expect(machines.startMachine(bench.newSpec())).rejects.toThrow('Machines cannot run here')
    expect((await machines.isolation()).gap).toContain('the kernel does not let us')
  })

  test('can be stopped and removed while it is in progress', async () => {
    const spec = bench.newSpec()
    const starting = bench.machines.startMachine(spec).catch(() => 'refused')
    await bench.machines.stopMachine(spec.id, spec.stop)
    await starting
    expect(bench.look(spec).is).toBe('down')
    const again = bench.machines.startMachine(spec).catch(() => 'refused')
    await bench.machines.removeMachine(spec.id, spec.slot)
    await again
    expect(bench.look(spec)).toEqual({ is: 'absent' })
    expect(processesOf(spec)).toEqual([])
  })
})

describe('a stop', () => {
  test('signals the program and ends every process', async () => {
    const script =
      'trap "echo interrupted; exit 4" INT; sleep 999 & setsid sleep 998 & echo ready; while :; do sleep 0.02; done'
    const spec = await bench.newMachine({ script, stop: { signal: 'SIGINT', timeoutMs: 20_000 } })
    await bench.untilPrinted(spec, 'ready')
    await untilListed(spec, 'sleep 999', 'sleep 998')
    await bench.machines.stopMachine(spec.id, spec.stop)
    expect(bench.look(spec)).toMatchObject({ is: 'down', exits: [{ exitCode: 4, requested: true, restarting: false }] })
    expect(processesOf(spec)).toEqual([])
    await bench.untilPrinted(spec, 'interrupted')
    await bench.machines.stopMachine(spec.id, spec.stop)
    expect(bench.exits(spec)).toHaveLength(1)
  })

  test('kills a program that ignores the signal after the timeout', async () => {
    const spec = await bench.newMachine({ script: 'trap "" TERM INT; echo ready; while :; do sleep 0.02; done' })
    await bench.untilPrinted(spec, 'ready')
    const pid = await bench.pidOf(spec)
    await bench.machines.stopMachine(spec.id, { signal: '15', timeoutMs: 50 })
    expect(isRunning(pid)).toBe(false)
    expect(bench.exits(spec)).toMatchObject([{ exitCode: 137, signal: 9, requested: true }])
    await bench.machines.startMachine(spec)
    await bench.machines.stopMachine(spec.id, { signal: 'TERM', timeoutMs: 0 })
    expect(bench.look(spec).is).toBe('down')
  })

  test('signals a program that has changed its user', async () => {
    const files = [{ path: '/run.sh', mode: 0o755, content: Buffer.from(`#!/bin/sh\n${waiting}\n`) }]
    const spec = await bench.newMachine({ files, argv: isFull ? ['su', 'guest', '-c', '/run.sh'] : ['/run.sh'] })
    await bench.untilPrinted(spec, 'ready')
    await bench.machines.stopMachine(spec.id, { signal: 'SIGTERM', timeoutMs: 20_000 })
    expect(bench.exits(spec)[0]!.exitCode).not.toBe(137)
  })

  test('of many machines at once works', async () => {
    const specs = await Promise.all([1, 2, 3].map(() => bench.newMachine()))
    await Promise.all(specs.map((spec) => bench.machines.stopMachine(spec.id, spec.stop)))
    expect(specs.map((spec) => bench.look(spec).is)).toEqual(['down', 'down', 'down'])
    await Promise.all(specs.map((spec) => bench.machines.removeMachine(spec.id, spec.slot)))
  })
})

describe('signals', () => {
  test('reach the program by name and by number', async () => {
    const script = 'trap "echo hup" HUP; trap "echo usr1" USR1; echo ready; while :; do sleep 0.02; done'
    const spec = await bench.newMachine({ script })
    await bench.untilPrinted(spec, 'ready')
    expect(await bench.machines.signalMachine(spec.id, 'SIGHUP')).toBe(true)
    await bench.untilPrinted(spec, 'hup')
    expect(await bench.machines.signalMachine(spec.id, '10')).toBe(true)
    await bench.untilPrinted(spec, 'usr1')
    await bench.machines.stopMachine(spec.id, { signal: 'SIGKILL', timeoutMs: 1000 })
    expect(await bench.machines.signalMachine(spec.id, 'SIGHUP')).toBe(false)
  })
})

describe.runIf(hasGroups)('limits', () => {
  test('kill a program that uses too much memory, and record it', async () => {
    const script = 'x=1; while :; do x=$x$x; done'
    const spec = await bench.newMachine({ script, limits: { memoryMb: 32, cpus: 1, pids: 50 } })
    await until(() => bench.look(spec).is === 'down')
    expect(bench.exits(spec)).toMatchObject([{ oomKilled: true, signal: 9 }])
    await bench.untilPrinted(spec, 'out of memory')
    const calm = { ...spec, instanceId: 'calm', argv: ['sh', '-c', 'exit 1'] }
    await bench.machines.startMachine(calm)
    await until(() => bench.look(calm).is === 'down')
    expect(bench.exits(calm)).toMatchObject([{ oomKilled: false, exitCode: 1 }])
  })

  test('are visible inside at /sys/fs/cgroup', async () => {
    const spec = await bench.newMachine({ limits: { memoryMb: 64, cpus: 1, pids: 50 } })
    const script = 'cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null'
    expect((await bench.sh(spec, script)).out.trim()).toBe(String(64 * 1024 * 1024))
    expect((await bench.sh(spec, 'echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes')).code).not.toBe(0)
  })

  test('of memory can be changed while it runs, and are reset by the next start', async () => {
    const megabyte = 1024 ** 2
    const { machines } = bench
    const spec = await bench.newMachine({ limits: { memoryMb: 64, swapMb: 16, cpus: 1, pids: 50 } })
    await bench.pidOf(spec)
    const limit = () => machines.readMemory(spec.id)!.limitBytes / megabyte
    expect(limit()).toBe(64)
    expect(await machines.setMemoryLimit(spec.id, 128 * megabyte)).toBe(true)
    expect((await bench.sh(spec, 'echo fine')).out).toBe('fine\n')
    await machines.freezeMachine(spec.id)
    await machines.startMachine(spec)
    expect(limit()).toBe(128)
    expect(await machines.setMemoryLimit(spec.id, 0.01 * megabyte)).toBe(false)
    expect(await machines.reclaimMemory(spec.id, 64 * megabyte)).toBeGreaterThanOrEqual(0)
    expect(limit()).toBe(128)
    await machines.stopMachine(spec.id, spec.stop)
    expect(machines.readMemory(spec.id)).toBeUndefined()
    expect(await machines.setMemoryLimit(spec.id, 128 * megabyte)).toBe(false)
    expect(await machines.reclaimMemory(spec.id, megabyte)).toBe(0)
    await machines.startMachine(spec)
    await bench.pidOf(spec)
    expect(limit()).toBe(64)
  })
})

describe.runIf(hasGroups)('a frozen machine', () => {
  const script = 'n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.01; done'

  async function counted(spec: MachineSpec): Promise<string> {
    const file = `${machinePaths(bench.home, spec.id).directory}/layer/upper/tmp/n`
    await until(() => existsSync(file))
    return readFileSync(file, 'utf8')
  }

  test('does not run until it is thawed, and continues where it was', async () => {
    const spec = await bench.newMachine({ script })
    const pid = await bench.pidOf(spec)
    await counted(spec)
    await bench.machines.freezeMachine(spec.id)
    await bench.machines.freezeMachine(spec.id)
    expect(bench.look(spec)).toMatchObject({ is: 'up', frozen: true, pid })
    const before = await counted(spec)
    await bench.machines.thawMachine(spec.id)
    expect(bench.look(spec)).toMatchObject({ is: 'up', frozen: false, pid, exits: [] })
    await until(async () => (await counted(spec)) !== before)
    await bench.machines.freezeMachine(spec.id)
    await bench.machines.startMachine(spec)
    expect(bench.look(spec)).toMatchObject({ is: 'up', frozen: false, pid })
  })

  test('is killed when it is stopped or removed', async () => {
    const spec = await bench.newMachine({ script })
    await bench.machines.freezeMachine(spec.id)
    await bench.machines.stopMachine(spec.id, { signal: 'SIGTERM', timeoutMs: 5000 })
    expect(bench.look(spec)).toMatchObject({ is: 'down', exits: [{ requested: true, restarting: false }] })
    await bench.machines.startMachine(spec)
    await bench.machines.freezeMachine(spec.id)
    await bench.machines.removeMachine(spec.id, spec.slot)
    expect(bench.look(spec)).toEqual({ is: 'absent' })
    await expect(bench.machines.freezeMachine(spec.id)).rejects.toThrow('not running')
  })
})

describe('logs', () => {
  test('keep both streams in order, over a stop and a start', async () => {
    // Each stream has its own logger, which writes the timestamps.
    const script = 'trap "echo two >&2" USR1; trap "printf three; exit 0" USR2; echo one; while :; do sleep 0.02; done'
    const spec = bench.newSpec({ script })
    const live = async (before: number) => {
      const untilLines = (count: number) =>
        until(async () => (await bench.machines.readLog(spec.id, 100)).length === before + count)
      await bench.machines.startMachine(spec)
      await untilLines(1)
      await bench.machines.signalMachine(spec.id, 'USR1')
      await untilLines(2)
      await bench.machines.signalMachine(spec.id, 'USR2')
      await untilLines(4)
    }
    await live(0)
    expect((await bench.machines.readLog(spec.id, 100)).map(({ stream, text }) => [stream, text])).toEqual([
      ['stdout', 'one'],
      ['stderr', 'two'],
      ['stdout', 'three'],
      ['platform', 'exited with code 0'],
    ])
    expect((await bench.machines.readLog(spec.id, 1)).map(({ text }) => text)).toEqual(['exited with code 0'])
    await live(4)
    expect(await bench.machines.readLog('00000000000000', 5)).toEqual([])
  })

  test('can be followed, starting with the last lines', async () => {
    const script = 'echo old; echo last; trap "echo fresh" USR1; echo ready; while :; do sleep 0.02; done'
    const spec = await bench.newMachine({ script })
    await bench.untilPrinted(spec, 'ready')
    const gone = new AbortController()
    const heard: LogLine[] = []
    const following = (async () => {
      for await (const line of bench.machines.followLog(spec.id, 2, gone.signal)) heard.push(line)
    })()
    await until(() => heard.length === 2)
    await bench.machines.signalMachine(spec.id, 'USR1')
    await until(() => heard.length === 3)
    gone.abort()
    await following
    expect(heard.map(({ text }) => text)).toEqual(['last', 'ready', 'fresh'])
  })

  test('take limited space when a program floods them', async () => {
    const spec = await bench.newMachine({ script: 'yes "$(head -c 500 /dev/zero | tr "\\0" x)"' })
    const { log } = machinePaths(bench.home, spec.id)
    await until(() => readdirSync(`${log}/stdout`).filter((name) => name.startsWith('@')).length === 3, 60)
    await until(() => readdirSync(`${log}/stdout`).length > 0)
    await bench.machines.stopMachine(spec.id, { signal: 'SIGKILL', timeoutMs: 0 })
    // The logger may still be writing the last lines.
    const sizeOf = (name: string) => statSync(`${log}/stdout/${name}`, { throwIfNoEntry: false })?.size ?? 0
    const bytes = readdirSync(`${log}/stdout`).map(sizeOf)
    expect(bytes.reduce((sum, size) => sum + size, 0)).toBeLessThan(5 * 9 * 1024 * 1024)
  })
})

describe('processes', () => {
  test('are listed with their listening sockets', async () => {
    const script = 'httpd -f -p 127.0.0.1:8080 & sleep 997 & cd /tmp; echo ready; wait'
    const spec = await bench.newMachine({ script })
    await bench.untilPrinted(spec, 'ready')
    const find = async (text: string) =>
      (await bench.machines.listProcesses(spec.id)).find(({ command }) => command.startsWith(text))
    await until(async () => ((await find('httpd '))?.listen_sockets.length ?? 0) > 0)
    // The average includes the CPU time of the start, which matters less over time.
    await until(async () => (await find('sleep 997'))?.cpu === 0)
    const listed = await bench.machines.listProcesses(spec.id)
    expect(listed.find(({ pid }) => pid === 2)).toMatchObject({
      command: expect.stringContaining('sh -c httpd'),
      directory: '/tmp',
    })
    expect(listed.find(({ command }) => command === 'sleep 997')).toMatchObject({ rss: expect.any(Number), cpu: 0 })
    expect(listed.find(({ command }) => command.startsWith('httpd '))?.listen_sockets).toEqual([
      { proto: 'tcp', address: '127.0.0.1:8080' },
    ])
    expect(listed.some(({ pid }) => pid === 1)).toBe(false)
    expect(bench.machines.listListening(spec.id)).toEqual([{ proto: 'tcp', address: '127.0.0.1:8080' }])
    await bench.machines.stopMachine(spec.id, spec.stop)
    expect(bench.machines.listListening(spec.id)).toBeUndefined()
  })
})

describe.runIf(isFull)('the network', () => {
  test('lets the host reach ports of the machine, even on loopback, but not a machine the host or another machine', async () => {
    const [one, other] = [
      await bench.newMachine({ script: 'echo hello > /tmp/index.html; exec httpd -f -h /tmp -p 127.0.0.1:8080' }),
      await bench.newMachine(),
    ]
    const address = boxAddress(bench.home.number, one.slot)
    await until(() => connects(address, 8080))
    const server = createServer().listen(0, '0.0.0.0')
    await new Promise((resolve) => server.on('listening', resolve))
    const { port } = server.address() as { port: number }
    const host = boxNetwork(bench.home, other.slot).hostAddress
    expect((await bench.sh(other, `nc -w 1 ${host} ${port} </dev/null`)).code).not.toBe(0)
    expect((await bench.sh(one, 'wget -q -O - http://127.0.0.1:8080')).out).toBe('hello\n')
    expect((await bench.sh(other, `wget -q -T 1 -O - http://${address}:8080`)).out).toBe('')
    server.close()
  })
})

function connects(host: string, port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, timeout: 500 })
    socket.on('connect', () => socket.end()).on('error', () => resolve(false))
    socket.on('timeout', () => socket.destroy()).on('close', (failed) => resolve(!failed && socket.bytesRead >= 0))
  })
}

describe('a removed machine', () => {
  test('leaves nothing behind', async () => {
    const spec = await bench.newMachine({ script: `echo x > /tmp/x; ${waiting}` })
    await bench.untilPrinted(spec, 'ready')
    const pid = await bench.pidOf(spec)
    await bench.machines.removeMachine(spec.id, spec.slot)
    await bench.machines.removeMachine(spec.id, spec.slot)
    expect(isRunning(pid)).toBe(false)
    const { directory, log, service } = machinePaths(bench.home, spec.id)
    expect([directory, log, service].filter((path) => existsSync(path))).toEqual([])
    expect(readdirSync(bench.home.tree).filter((name) => name.includes(spec.id))).toEqual([])
    expect(readdirSync(`${bench.home.run}/machine`)).not.toContain(spec.id)
    expect(listLinks()).not.toContain(boxNetwork(bench.home, spec.slot).link)
    expect(
      cgroupDriver()
        .listCgroups()
        .filter((name) => name.includes(spec.id)),
    ).toEqual([])
    expect(existsSync(`/sys/fs/cgroup/freezer/berth-${bench.home.number}-machine-${spec.id}`)).toBe(false)
    expect(() => bench.run(spec, ['true'])).toThrow('there is no machine')
  })
})
