// Boxes on hosts with less isolation: without root, without networks, and without namespaces.
import { existsSync, rmSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { findSessions, SessionClient } from '../../support/session.ts'
import { canRunAs, firstLine, processesBelow, startProgram, temporaryDirectory } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

const ordinary = 65_534

/** Shows a checkpoint inside, in a running box and after a restart. */
const views = Array(2).fill({ code: 0, out: 'kept\nusr/local\n' })

/** A command that has the first terminal of its box. */
const terminal = { code: 3, out: '/dev/pts/0\r\n20 90\r\n' }

/** Runs as another user: makes a box, tries the commands in it, removes it. Prints what it saw. */
function program(directory: string, commands: string[][]): string {
  return `
    import { boxDriver } from 'drivers/box/lifecycle.ts'
    import { checkpointDriver } from 'drivers/box/checkpoint/checkpoint.ts'
    import { cgroupDriver } from 'drivers/host/cgroup.ts'
    import { jobDriver } from 'drivers/s6/job.ts'
    import { openHome } from 'drivers/host/home.ts'
    import { s6Supervisor } from 'drivers/s6/supervisor.ts'
    const home = await openHome('${directory}/h', { uidBase: 300000 })
    const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
    await supervisor.ensureTree()
    const boxes = boxDriver({ home, supervisor, cgroups: cgroupDriver() })
    const spec = { id: 'ordinary', slot: 1, hostname: 'ordinary', limits: { memoryMb: 256, cpus: 1, pids: 100 } }
    const run = (argv) => new Promise((resolve) => {
      const child = boxes.spawnInBox(spec, { argv })
      let out = ''
      child.stdout.on('data', (data) => { out += data })
      child.stdin.end()
      child.on('close', (code) => resolve({ code, out }))
    })
    const onTerminal = (script) => new Promise((resolve) => {
      let out = ''
      const start = { id: '1', isTerminal: true, cols: 90, rows: 20, maxRunAfterDisconnectMs: null, facts: '' }
      const session = boxes.startSession(spec, { argv: ['sh', '-c', script] }, start, {
        onOutput: (stream, data) => { out += data },
        onDrain() {},
        onEnd(code) { session.release(); resolve({ code, out }) },
      })
    })
    const seen = { isolation: await boxes.isolation(), ended: [] }
    try {
      await boxes.ensureBox(spec)
      await run(['sh', '-c', 'mkdir -m 0 /opt/closed; echo kept > /etc/kept'])
      await boxes.stopBox(spec.id)
      await boxes.ensureBox(spec)
      seen.address = boxes.addressOf(spec)
      const checkpoints = checkpointDriver({ home, jobs: jobDriver(supervisor), cgroups: cgroupDriver() })
      while ((await checkpoints.makeCheckpoint(spec, 'v1')).is === 'running');
      const look = ['sh', '-c', 'cd /.sprite/checkpoints/v1 && cat etc/kept && ls -d usr/local && ! touch etc/kept && ! rmdir .']
      seen.views = [await run(look)]
      await boxes.stopBox(spec.id)
      await boxes.ensureBox(spec)
      seen.views.push(await run(look))
      for (const argv of ${JSON.stringify(commands)}) seen.ended.push(await run(argv))
      seen.terminal = await onTerminal('tty; stty size; : < /dev/tty; exit 3')
    } finally {
      await boxes.removeBox(spec)
      seen.after = await boxes.inspectBox(spec.id)
      await supervisor.stopTree()
    }
    console.log(JSON.stringify(seen))
  `
}

describe.runIf(isRoot() && canRunAs(ordinary))('without root', () => {
  const directory = temporaryDirectory(ordinary)
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  test('a box has one user and no network, and is isolated otherwise', async () => {
    const commands = [
      [
        'sh',
        '-c',
        'id -u; cat /etc/kept; ls /usr/local; echo 1 > /usr/local/x && cat /usr/local/x; ls /proc | grep -c "^[0-9]"',
      ],
      ['sh', '-c', 'grep -v lo: /proc/net/dev | grep -c :'],
      [
        'sh',
        '-c',
        `ls ${directory} /work 2>/dev/null || unshare -U true || mount -t tmpfs x /mnt || mknod /tmp/d b 1 1`,
      ],
      ['no-such-program'],
    ]
    const seen = JSON.parse(await firstLine(startProgram(program(directory, commands), ordinary)))
    expect(seen.isolation).toMatchObject({ kind: 'bubblewrap', gap: expect.stringContaining('no network') })
    const [inside, network, escapes, missing] = seen.ended
    expect(inside).toMatchObject({ code: 0, out: expect.stringMatching(/^0\nkept\n1\n[34]\n$/) })
    expect(network.out).toBe('0\n')
    expect(escapes).toMatchObject({ code: 1, out: '' })
    expect(missing.code).toBe(127)
    expect(seen).toMatchObject({ address: '127.0.0.1', views, terminal, after: { is: 'absent' } })
    await until(() => processesBelow(directory).length === 0)
    expect(existsSync(`${directory}/h/sandbox/ordinary`)).toBe(false)
  })
})

describe.runIf(isRoot())('as root without the permission to create networks', () => {
  const directory = temporaryDirectory()
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  test('a box has only a loopback interface, and everything else', async () => {
    const commands = [
      ['sh', '-c', 'id -u; cat /etc/kept; chown 33 /etc/kept && stat -c %u /etc/kept'],
      ['sh', '-c', 'grep -v lo: /proc/net/dev | grep -c :'],
      [
        'perl',
        '-e',
        'use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(80, INADDR_LOOPBACK)) or die; listen(S, 1); socket(C, 2, 1, 6); connect(C, sockaddr_in(80, INADDR_LOOPBACK)) or die $!; print "own loopback"',
      ],
    ]
    const prefix = ['setpriv', '--bounding-set', '-net_admin', '--inh-caps', '-net_admin', '--']
    const seen = JSON.parse(await firstLine(startProgram(program(directory, commands), undefined, prefix)))
    expect(seen.isolation).toMatchObject({
      kind: 'bubblewrap',
      network: 'none',
      gap: expect.stringContaining('no network'),
    })
    expect(seen.ended.map(({ out }: { out: string }) => out)).toEqual(['0\nkept\n33\n', '0\n', 'own loopback'])
    expect(seen).toMatchObject({ address: '127.0.0.1', views, terminal, after: { is: 'absent' } })
  })
})

describe('without namespaces', () => {
  let bench: BoxBench
  beforeAll(async () => {
    const isolation = { kind: 'none' as const, network: 'host' as const, gap: 'Nothing is isolated.' }
    bench = await openBoxBench({ mode: 'none', network: false, isolation })
  })
  afterAll(() => bench?.remove())

  test('reports the gap', async () => {
    expect(await bench.boxes.isolation()).toMatchObject({ kind: 'none', gap: 'Nothing is isolated.' })
  })

  test('runs commands as plain processes with their own home directory', async () => {
    const box = await bench.newBox()
    const home = `${bench.home.path}/sandbox/${box.id}/root/home/sprite`
    expect((await bench.sh(box, 'pwd; echo $HOME; echo kept > kept')).out).toBe(`${home}\n${home}\n`)
    expect((await bench.run(box, ['no-such-program'])).code).toBe(127)
    expect((await bench.sh(box, 'kill -9 $$')).code).toBe(137)
    expect(bench.boxes.addressOf(box)).toBe('127.0.0.1')
    // The platform as root does not run commands of users as root.
    if (isRoot()) expect((await bench.sh(box, 'id -u')).out).toBe(`${bench.home.uidStart + box.slot * 65_536}\n`)
    await bench.boxes.stopBox(box.id)
    await bench.boxes.ensureBox(box)
    expect((await bench.sh(box, 'cat kept')).out).toBe('kept\n')
  })

  test('runs sessions, which end with the box', async () => {
    const box = await bench.newBox()
    const client = SessionClient.sh(bench.boxes, box, 'tty; stty size; exec sleep 1000', { isTerminal: true })
    await client.said('24 80')
    expect(client.out).toMatch(/^\/dev\/pts\/\d+\r\n/)
    client.session.leave()
    const [found] = await findSessions(bench.boxes, box)
    const again = SessionClient.follow(found!)
    expect(again.out).toBe(client.out)
    await bench.boxes.stopBox(box.id)
    expect(await again.end()).toBe(137)
    expect(await findSessions(bench.boxes, box)).toEqual([])
  })

  test('ends all commands when the box stops', async () => {
    const box = await bench.newBox()
    const command = bench.run(box, ['sh', '-c', 'setsid sleep 1000 & wait'])
    await until(() => processesBelow(bench.home.path).some(({ name }) => name === 'sleep'))
    await bench.boxes.stopBox(box.id)
    await command
    expect(processesBelow(bench.home.path).filter(({ name }) => name === 'sleep')).toEqual([])
    expect(await bench.boxes.inspectBox(box.id)).toEqual({ is: 'down' })
  })
})
