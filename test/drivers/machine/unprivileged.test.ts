// Runs machines as an ordinary user, who can use fewer features of the host.
import { execFileSync } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, rmSync, symlinkSync } from 'node:fs'
import { afterAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { canRunAs, firstLine, processesBelow, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const ordinary = 65_534

/** Runs as another user: starts, stops and restarts a machine, runs commands in it, removes it, and prints the results. */
function program(directory: string, commands: string[][]): string {
  return `
    import { cgroupDriver } from 'drivers/host/cgroup.ts'
    import { openHome } from 'drivers/host/home.ts'
    import { machineDriver } from 'drivers/machine/lifecycle.ts'
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    const home = await openHome('${directory}/h', { uidBase: 300000 })
    const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
    await supervisor.ensureTree()
    const volumes = { mountOf: () => ({ source: '${directory}/volume', kind: 'directory' }) }
    const machines = machineDriver({ home, supervisor, cgroups: cgroupDriver(), volumes })
    const spec = {
      id: '0123456789abcd', instanceId: 'first', slot: 9, hostname: 'ordinary', layers: ['${directory}/layer'],
      argv: ['sh', '-c', 'trap "exit 5" TERM; cat /left; echo x > /left; mkdir -m 0 /closed; echo ready; echo err >&2; while :; do sleep 0.02; done'],
      env: { PATH: '/bin' }, user: '405', workingDir: '/srv', files: [{ path: '/a/b', mode: 0o600, content: Buffer.from('b') }],
      limits: { memoryMb: 256, cpus: 1, pids: 100 }, mounts: [{ volumeId: 'x', path: '/data' }],
      restart: { policy: 'no', maxRetries: 0 }, stop: { signal: 'SIGTERM', timeoutMs: 20000 }, keepsRoot: false,
      containers: [],
    }
    const { layers, env, user, workingDir, restart, stop } = spec
    const container = (name, script) => ({
      name, argv: ['sh', '-c', script], layers, env, user, workingDir, files: [], restart, stop, dependsOn: [], stopsUnhealthy: false,
    })
    const shared = { ...spec, id: '0123456789abce', slot: 8, mounts: [], containers: [
      container('server', 'while :; do echo hello | nc -l -p 7000; done'),
      container('client', 'until nc 127.0.0.1 7000 < /dev/null; do sleep 0.02; done; while :; do sleep 1; done'),
    ] }
    const heard = async () => (await machines.readLog(shared.id, 100)).some(({ container, text }) => container === 'client' && text === 'hello')
    const run = (argv) => new Promise((resolve) => {
      const child = machines.spawnInMachine(spec, { argv })
      let out = ''
      child.stdout.on('data', (data) => { out += data })
      child.stdin.end()
      child.on('close', (code) => resolve({ code, out }))
    })
    const printed = async () => (await machines.readLog(spec.id, 100)).map(({ text }) => text)
    const ready = async (count) => {
      while ((await printed()).filter((text) => text === 'ready').length < count) await new Promise((r) => setTimeout(r, 10))
    }
    const seen = { isolation: await machines.isolation(), ended: [] }
    try {
      await machines.startMachine(spec)
      await ready(1)
      await machines.stopMachine(spec.id, spec.stop)
      await machines.startMachine(spec)
      await ready(2)
      for (const argv of ${JSON.stringify(commands)}) seen.ended.push(await run(argv))
      seen.held = await machines.freezeMachine(spec.id)
      seen.found = machines.inspectMachine(spec.id, 'first')
      seen.listed = (await machines.listProcesses(spec.id)).length
      seen.printed = await printed()
      await machines.startMachine(shared)
      while (!(await heard())) await new Promise((r) => setTimeout(r, 10))
      const states = () => machines.inspectMachine(shared.id, 'first').containers.map(({ state }) => state)
      // The supervisor of the containers looks fifty times a second whether they have started.
      while (states().includes('starting')) await new Promise((r) => setTimeout(r, 10))
      seen.containers = states()
    } finally {
      await machines.removeMachine(spec.id, spec.slot)
      await machines.removeMachine(shared.id, shared.slot)
      seen.after = machines.inspectMachine(spec.id, 'first')
      await supervisor.stopTree()
    }
    console.log(JSON.stringify(seen))
  `
}

describe.runIf(isRoot() && canRunAs(ordinary))('as an ordinary user', () => {
  const directory = temporaryDirectory(ordinary)
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  test('a machine has one user and no network, and otherwise works the same', async () => {
    makeLayer(`${directory}/layer`)
    mkdirSync(`${directory}/volume`)
    // Unpacked files belong to the user who unpacks them.
    execFileSync('chown', ['-R', `${ordinary}:${ordinary}`, `${directory}/layer`, `${directory}/volume`])
    const commands = [
      ['sh', '-c', 'id -u; pwd; cat /a/b /etc/hostname; ls /; echo 1 > /tmp/x && cat /tmp/x'],
      ['sh', '-c', 'grep -v lo: /proc/net/dev | grep -c :'],
      ['sh', '-c', `ls ${directory} /work 2>/dev/null || unshare -U true || mount -t tmpfs x /mnt || mknod /d b 1 1`],
      ['no-such-program'],
    ]
    const seen = JSON.parse(await firstLine(startProgram(program(directory, commands), ordinary)))
    expect(seen.isolation).toMatchObject({ kind: 'bubblewrap', gap: expect.stringContaining('machines have one user') })
    const [inside, network, escapes, missing] = seen.ended
    expect(inside).toMatchObject({ code: 0, out: expect.stringMatching(/^0\n\/srv\nbordinary\na\nbin\nclosed\n/) })
    expect(network.out).toBe('0\n')
    expect(escapes).toMatchObject({ code: 1, out: '' })
    expect(missing.code).toBe(127)
    expect(seen.found).toMatchObject({ is: 'up', exits: [{ exitCode: 5, requested: true }] })
    expect(seen.held).toBe(false)
    expect(seen.listed).toBeGreaterThan(0)
    expect(seen.printed).not.toContain('x')
    expect(seen.containers).toEqual(['running', 'running'])
    expect(seen.after).toEqual({ is: 'absent' })
    await until(() => processesBelow(directory).length === 0)
    expect(existsSync(`${directory}/h/machine/0123456789abcd`)).toBe(false)
  })
})

function makeLayer(layer: string): void {
  for (const place of ['bin', 'etc', 'tmp']) mkdirSync(`${layer}/${place}`, { recursive: true })
  copyFileSync(['/usr/bin/busybox', '/bin/busybox'].find(existsSync)!, `${layer}/bin/busybox`)
  for (const name of ['sh', 'cat', 'echo', 'sleep', 'id', 'ls', 'grep', 'mkdir', 'unshare', 'mount', 'mknod', 'nc'])
    symlinkSync('busybox', `${layer}/bin/${name}`)
}
