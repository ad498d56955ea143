// Commands that outlive the process that started them, in real boxes.
import { existsSync, readdirSync, readlinkSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { listProcesses } from '../../../src/drivers/host/process-list.ts'
import type { BoxSpec } from '../../../src/model/sandbox/box.ts'
import { type BoxBench, openBoxBench } from '../../support/box.ts'
import { findSessions, SessionClient } from '../../support/session.ts'
import { isRunning } from '../../support/temporary-home.ts'
import { until } from '../../support/until.ts'

let bench: BoxBench
let spec: BoxSpec
/** The pid of its first process on the host. */
let first: number

beforeAll(async () => {
  bench = await openBoxBench()
  spec = await bench.newBox()
  first = await bench.pidOf(spec)
})
afterAll(() => bench?.remove())

const sh = (script: string, start: Parameters<typeof SessionClient.sh>[3] = {}) =>
  SessionClient.sh(bench.boxes, spec, script, start)
const onTerminal = (script: string, start = {}) => sh(script, { isTerminal: true, cols: 100, rows: 30, ...start })
const attach = async ({ id }: SessionClient) => {
  const found = (await findSessions(bench.boxes, spec)).find((session) => session.id === id)
  if (!found) throw new Error(`the session ${id} was not found`)
  return SessionClient.follow(found)
}
const sockets = () => {
  const directory = `${bench.home.run}/exec/${spec.id}`
  return existsSync(directory) ? readdirSync(directory) : []
}
/** The processes on the host that hold sessions of the box: they have its mounts and are not among its processes. */
const holders = () => {
  const pid = readlinkSync(`/proc/${first}/ns/pid`)
  const mounts = readlinkSync(`/proc/${first}/ns/mnt`)
  return listProcesses()
    .map((found) => found.pid)
    .filter((one) => namespaceOf(one, 'mnt') === mounts && namespaceOf(one, 'pid') !== pid)
}
const namespaceOf = (pid: number, kind: string) => {
  try {
    return readlinkSync(`/proc/${pid}/ns/${kind}`)
  } catch {
    return undefined // it ended meanwhile
  }
}
const count = async (pattern: string) =>
  Number((await bench.run(spec, ['sh', '-c', 'pgrep -fc "$1" || :', 'sh', pattern])).out)

describe('a terminal', () => {
  test('has a name in the box, under which programs find and open it', async () => {
    const client = onTerminal(
      'tty; readlink /proc/self/fd/0; perl -MPOSIX -e "print POSIX::ttyname(0), qq(\\n)"; echo opened > "$(tty)"; : < /dev/tty && echo controls; stat -c "%U %a" "$(tty)"; exit 5',
    )
    expect(await client.end()).toBe(5)
    const lines = client.out.split('\r\n')
    expect(lines[0]).toMatch(/^\/dev\/pts\/\d+$/)
    expect(lines).toEqual([lines[0], lines[0], lines[0], 'opened', 'controls', 'root 620', ''])
  })

  test('serves programs that need one, and those that make others', async () => {
    const client = onTerminal('script -qc "tty; stty size" /dev/null; who am i; su -c tty root; exit 0')
    expect(await client.end()).toBe(0)
    expect(client.out.match(/\/dev\/pts\/\d+/g)!.length).toBeGreaterThanOrEqual(2)
    expect(client.out).not.toContain('not a tty')
  })

  test('has a size, and its programs learn when that changes', async () => {
    const client = onTerminal('trap "stty size; exit 4" WINCH; stty size; echo ready; while :; do sleep 0.05; done')
    await client.said('ready')
    expect(client.out).toContain('30 100')
    client.session.resize(132, 43)
    expect(await client.end()).toBe(4)
    expect(client.out).toContain('43 132')
  })

  test('has job control, passes keys on as signals, and hangs up at the end', async () => {
    const client = SessionClient.start(bench.boxes, spec, ['bash', '--norc', '-i'], { isTerminal: true })
    client.write('sleep 7301\n')
    await until(async () => (await count('^sleep 730[1]')) === 1)
    client.write('\x1a')
    await client.said('Stopped')
    client.write('jobs; fg\n')
    await until(() => client.out.split('sleep 7301').length >= 5)
    client.write('\x03')
    client.write('echo code-$?; exit 3\n')
    expect(await client.end()).toBe(3)
    expect(client.out).toContain('code-130')
    expect(client.out).not.toContain('no job control')
    await until(async () => (await count('^sleep 730[1]')) === 0)
  })

  test('delivers what a program wrote right before its end', async () => {
    const clients = Array.from({ length: 20 }, (_, nth) => onTerminal(`seq 1 ${2000 + nth}`))
    for (const [nth, client] of clients.entries()) {
      expect(await client.end()).toBe(0)
      expect(client.out.trim().split('\r\n').length).toBe(2000 + nth)
    }
  })

  test('is refused with a reason when the box has used all of its own', async () => {
    const hoard = sh(
      'exec perl -e \'$| = 1; while (open my $f, "+<", "/dev/ptmx") { push @f, $f } print "full\\n"; sleep 600\'',
    )
    await hoard.said('full')
    const client = onTerminal('true')
    expect(await client.end()).toBe(126)
    expect(client.out).toContain('no terminal is left')
    hoard.session.signal(9)
    expect(await hoard.end()).toBe(137)
  })
})

describe('a command with pipes', () => {
  test('reads its input and returns its output and exit code', async () => {
    const client = sh('cat; echo err >&2; exit 7')
    client.write('one ')
    client.write('two')
    client.session.endInput()
    expect(await client.end()).toBe(7)
    expect([client.out, client.err]).toEqual(['one two', 'err\n'])
  })

  test('passes megabytes on, and does not block signals when it does not read', async () => {
    const data = 'x'.repeat(20_000_000)
    const client = sh('wc -c')
    client.write(data)
    client.session.endInput()
    expect(await client.end()).toBe(0)
    expect(client.out.trim()).toBe(String(data.length))
    const deaf = sh('exec sleep 600')
    deaf.write(data)
    deaf.session.signal(15)
    expect(await deaf.end()).toBe(143)
  })

  test('has no descriptors of the platform, and does not see the process that holds it', async () => {
    const client = sh(
      'ls /proc/self/fd | tr "\\n" " "; readlink /proc/self/fd/* | grep -v ^/proc | cut -d : -f 1 | tr "\\n" " "; cat /proc/*/comm | grep -c "^perl" || :',
    )
    client.session.endInput()
    expect(await client.end()).toBe(0)
    expect(client.out).toBe('0 1 2 3 pipe pipe pipe 0\n')
  })

  test('shows its pid in the box and the path of its program', async () => {
    const client = SessionClient.start(bench.boxes, spec, ['sh', '-c', 'echo $$; sleep 600'])
    await until(() => client.out !== '')
    expect(client.session.pid).toBe(Number(client.out))
    expect(client.session.path).toBe('/usr/bin/sh')
    client.session.signal(9)
    expect(await client.end()).toBe(137)
    expect(client.session.pid).toBeUndefined()
  })

  test('ends with its process, and leaves processes in the background alone', async () => {
    // More than a pipe holds: it is read on after the command has ended.
    const client = sh('(head -c 5000000 /dev/zero && touch /tmp/flushed; exec sleep 7303) & echo $! >&2')
    expect(await client.end()).toBe(0)
    await until(async () => (await bench.sh(spec, 'test -e /tmp/flushed')).code === 0)
    expect(sockets()).not.toContain(client.id)
    await bench.sh(spec, `kill -9 ${client.err}`)
    await until(() => holders().length === 0)
  })

  test('reports why it could not run', async () => {
    const missing = SessionClient.start(bench.boxes, spec, ['no-such-program'])
    expect(await missing.end()).toBe(127)
    expect(missing.err).toBe('exec: "no-such-program": not found\n')
    const nowhere = SessionClient.start(bench.boxes, spec, ['true'], { dir: '/no/such' })
    expect(await nowhere.end()).toBe(126)
    expect(nowhere.err).toContain('chdir /no/such')
    const stopped = await bench.newBox()
    await bench.boxes.stopBox(stopped.id)
    const client = SessionClient.start(bench.boxes, stopped, ['true'])
    expect(await client.end()).toBe(126)
    expect(client.err).toBe('the sandbox is not running\n')
  })
})

describe('when the platform leaves', () => {
  test('a session runs on, and is found with its latest output', async () => {
    const first = onTerminal('echo before; read x; echo "got $x"; read y; exit 6', { facts: '{"any":"text"}' })
    await first.said('before')
    first.session.leave()
    const [found] = await findSessions(bench.boxes, spec)
    expect(found).toMatchObject({ id: first.id, facts: '{"any":"text"}', cols: 100, rows: 30 })
    const second = SessionClient.follow(found!)
    expect(second.out).toBe('before\r\n')
    second.write('this\n')
    await second.said('got this')
    second.session.resize(77, 22)
    second.session.leave()
    const [again] = await findSessions(bench.boxes, spec)
    expect(again).toMatchObject({ cols: 77, rows: 22 })
    const third = SessionClient.follow(again!)
    expect(third.out).toContain('before\r\nthis\r\ngot this\r\n')
    third.write('\n')
    expect(await third.end()).toBe(6)
    expect(sockets()).toEqual([])
  })

  test('a command that nobody follows writes on, and only its latest output is kept', async () => {
    const first = sh('read go; seq 1 100000; echo end; read x')
    await until(() => first.session.path !== undefined)
    first.write('\n')
    first.session.leave()
    await until(async () => {
      const client = await attach(first)
      const isDone = client.out.endsWith('end\n')
      if (isDone) expect(client.out.length).toBeLessThanOrEqual(256 * 1024)
      if (isDone) expect(client.out.length).toBeGreaterThan(200 * 1024)
      if (isDone) client.session.signal(9)
      if (isDone) await client.end()
      else client.session.leave()
      return isDone
    })
  })

  test('one that waits for a slow follower continues when that is gone', async () => {
    const first = sh('head -c 30000000 /dev/zero | tr "\\0" x; touch /tmp/written; read x')
    await until(() => first.out !== '')
    first.session.pause()
    first.session.leave()
    await until(async () => (await bench.sh(spec, 'test -e /tmp/written')).code === 0)
    const second = await attach(first)
    second.session.endInput()
    expect(await second.end()).toBe(1)
  })

  test('the exit code of one that ends meanwhile is kept until it is known', async () => {
    const first = sh('echo working; read x; echo done; exit 9')
    await first.said('working')
    first.write('\n')
    first.session.leave()
    await until(async () => (await count('^sh -c echo working')) === 0)
    const lost = await attach(first)
    await until(() => lost.exitCode !== undefined)
    lost.session.leave() // as when the platform is killed before it could tell anyone
    const second = await attach(first)
    expect(await second.end()).toBe(9)
    expect(second.out).toBe('working\ndone\n')
    await until(() => holders().length === 0)
    expect(await findSessions(bench.boxes, spec)).toEqual([])
  })

  test('its time without clients passes, and it is killed if it does not end', async () => {
    const argv = 'trap "echo term >> /tmp/limit" TERM; echo ready; while :; do sleep 0.05; done'
    const first = sh(argv, { maxRunAfterDisconnectMs: 300 })
    first.session.setAttached(true)
    await first.said('ready')
    first.session.leave()
    await until(async () => (await bench.sh(spec, 'cat /tmp/limit')).out === 'term\n')
    const second = await attach(first)
    expect(await second.end()).toBe(137)
  })

  test('its time does not pass while it has clients', async () => {
    const first = sh('echo ready; read x', { maxRunAfterDisconnectMs: 100 })
    first.session.setAttached(true)
    await first.said('ready')
    const passed = sh('sleep 0.5')
    expect(await passed.end()).toBe(0)
    expect(first.exitCode).toBeUndefined()
    first.session.setAttached(false)
    expect(await first.end()).toBe(143)
  })
})

describe('nothing is left', () => {
  test('when the box stops', async () => {
    const followed = onTerminal('trap "" HUP TERM; echo ready; while :; do sleep 0.05; done')
    const left = sh('echo ready; sleep 600')
    await Promise.all([followed.said('ready'), left.said('ready')])
    left.session.leave()
    const before = holders()
    expect(before).toHaveLength(2)
    await bench.boxes.stopBox(spec.id)
    expect(await followed.end()).toBe(137)
    await until(() => before.every((pid) => !isRunning(pid)))
    expect(await findSessions(bench.boxes, spec)).toEqual([])
    expect(sockets()).toEqual([])
    await bench.boxes.ensureBox(spec)
    first = await bench.pidOf(spec)
  })

  test('when the process that holds a session is killed', async () => {
    const client = onTerminal('echo ready; sleep 7302')
    await client.said('ready')
    process.kill(holders()[0]!, 'SIGKILL')
    expect(await client.end()).toBe(137)
    await until(async () => (await count('^sleep 730[2]')) === 0)
    expect(sockets()).toEqual([])
    const left = sh('echo ready; sleep 600')
    await left.said('ready')
    left.session.leave()
    process.kill(holders()[0]!, 'SIGKILL')
    await until(() => holders().length === 0)
    expect(await findSessions(bench.boxes, spec)).toEqual([])
    expect(sockets()).toEqual([])
  })

  test('when the box is removed', async () => {
    const other = await bench.newBox()
    const client = SessionClient.sh(bench.boxes, other, 'echo ready; sleep 600')
    await client.said('ready')
    client.session.leave()
    await bench.boxes.removeBox(other)
    expect(existsSync(`${bench.home.run}/exec/${other.id}`)).toBe(false)
    expect(await findSessions(bench.boxes, other)).toEqual([])
  })
})
