// Commands on WebSockets survive the control plane, and end with their sandbox and with the platform.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end, kill } from '../../support/berth.ts'
import { ExecSocket, type Refused } from '../../support/exec.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
/** A number of seconds that only the commands of one test sleep for, by which they are found on the host. */
const seconds = (nth: number) => `4712.${process.pid}${nth}`

beforeAll(async () => {
  await berth.up()
  await api('POST', '', { name: 'box' })
})
afterAll(() => berth.destroy())

async function api(method: string, path: string, body?: object) {
  const reply = await fetch(`${berth.addresses.sandbox}/v1/sandboxes${path}`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await reply.text()
  const isJson = reply.headers.get('content-type')?.startsWith('application/json')
  return { status: reply.status, body: isJson ? JSON.parse(text) : text }
}

const at = (rest: string, name = 'box') => `${berth.addresses.sandbox}/v1/sandboxes/${name}/exec${rest}`
const sh = (script: string, extra = '', name = 'box') =>
  ExecSocket.open(at(`?cmd=sh&cmd=-c&cmd=${encodeURIComponent(script)}${extra}`, name), berth.token)
const attach = (client: ExecSocket, name = 'box') => ExecSocket.open(at(`/${client.sessionId}`, name), berth.token)
const list = async (name = 'box') => (await api('GET', `/${name}/exec`)).body.sessions as Record<string, unknown>[]
const killSession = (client: ExecSocket, query: string) => api('POST', `/box/exec/${client.sessionId}/kill${query}`)
const lasting = (sessions: Record<string, unknown>[]) =>
  sessions
    .map(({ id, command, workdir, created, tty }) => ({ id, command, workdir, created, tty }))
    .sort((a, b) => Number(a.id) - Number(b.id))

/** What counts against the quota of running commands. */
async function countCommands(): Promise<number> {
  const { quotas } = await berth.ok('GET', '/v1/orgs/personal/quotas')
  return quotas.find(({ name }: { name: string }) => name === 'commands').used
}

async function killControlPlane(): Promise<void> {
  await end(berth.children.at(-1)!, 'SIGKILL')
}

/** Processes of the host whose command line contains the word; those of boxes are visible there. */
function processesWith(word: string): number[] {
  const commandLine = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
    } catch {
      return '' // it ended meanwhile
    }
  }
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.filter((pid) => commandLine(pid).includes(word)).map(Number)
}

/** The sockets of held sessions, over all sandboxes. */
function sockets(): string[] {
  const directory = `${berth.home}/run/exec`
  return existsSync(directory) ? readdirSync(directory).flatMap((box) => readdirSync(`${directory}/${box}`)) : []
}

describe('when the control plane is killed', () => {
  test('sessions run on, and clients that attach again miss nothing', async () => {
    const terminal = await sh('tty; echo before; read x; echo "after $x"; stty size; exit 4', '&tty=true&dir=/tmp')
    const piped = await sh(
      'echo out; echo err >&2; read x; echo "got $x"; exit 5',
      '&stdin=true&max_run_after_disconnect=1h',
    )
    await until(() => terminal.output().includes('before') && piped.output(2) === 'err\n')
    const before = lasting(await list())
    await killControlPlane()
    expect(await terminal.untilClosed()).toBe(1006)
    await berth.up()
    expect(lasting(await list())).toEqual(before)
    expect(await countCommands()).toBe(2)
    const again = await attach(terminal)
    await until(() => again.output().includes('before'))
    expect(again.output()).toBe(terminal.output())
    expect(again.said('session_info')).toMatchObject({ is_owner: false, tty: true, cols: 80, rows: 24 })
    again.say({ type: 'resize', cols: 111, rows: 33 })
    again.socket.send(Buffer.from('restart\n'))
    expect(await again.exit()).toBe(4)
    expect(again.output()).toContain('after restart')
    expect(again.output()).toContain('33 111')
    const other = await attach(piped)
    await until(() => other.output(1) === 'out\n' && other.output(2) === 'err\n')
    other.stdin('it\n')
    expect(await other.exit()).toBe(5)
    expect(other.output(1)).toBe('out\ngot it\n')
    await until(async () => (await list()).length === 0)
    await until(() => sockets().length === 0)
    expect(await countCommands()).toBe(0)
  })

  test('sessions that end meanwhile are reported with their output and exit code', async () => {
    const client = await sh(`echo before; sleep ${seconds(1)}; echo after; exit 9`, '&max_run_after_disconnect=1h')
    const sleeper = `sleep\0${seconds(1)}`
    await until(() => client.output(1) === 'before\n' && processesWith(sleeper).length === 1)
    await killControlPlane()
    kill(processesWith(sleeper)[0]!)
    await until(() => processesWith('echo after; exit 9').length === 0)
    await berth.up()
    expect(await list()).toEqual([])
    for (const again of [await attach(client), await attach(client)]) {
      expect(await again.exit()).toBe(9)
      expect(again.output(1)).toContain('before\n')
      expect(again.output(1).endsWith('after\n')).toBe(true)
    }
    expect((await killSession(client, '')).status).toBe(410)
  })

  test('the time that a command may run without clients passes', async () => {
    const client = await sh(`sleep ${seconds(2)} & wait`, '&max_run_after_disconnect=300ms')
    await until(() => processesWith(`sleep\0${seconds(2)}`).length === 1)
    await killControlPlane()
    await until(() => processesWith(seconds(2)).length === 0)
    await berth.up()
    expect(await list()).toEqual([])
    expect(await (await attach(client)).exit()).toBe(143)
  })

  test('commands of plain requests end', async () => {
    const url = at(`?cmd=sh&cmd=-c&cmd=${encodeURIComponent(`echo; sleep ${seconds(3)} & wait`)}`)
    const reply = await fetch(url, { method: 'POST', headers: { authorization: `Bearer ${berth.token}` } })
    await until(() => processesWith(`sleep\0${seconds(3)}`).length === 1)
    await killControlPlane()
    await reply.text().catch(() => '')
    await until(() => processesWith(seconds(3)).length === 0)
    await berth.up()
  })

  test('a session can be killed after the restart', async () => {
    const client = await sh(`exec sleep ${seconds(4)}`, '&tty=true')
    await until(() => processesWith(`sleep\0${seconds(4)}`).length === 1)
    await killControlPlane()
    expect(sockets()).toContain(client.sessionId)
    await berth.up()
    expect((await killSession(client, '?signal=KILL')).status).toBe(200)
    await until(() => processesWith(seconds(4)).length === 0)
    expect(await list()).toEqual([])
  })
})

test('when the control plane is stopped, sessions run on and commands of plain requests end in order', async () => {
  const client = await sh('echo before; read x; exit 6', '&tty=true')
  await until(() => client.output().includes('before'))
  const post = (script: string) =>
    fetch(at(`?cmd=sh&cmd=-c&cmd=${encodeURIComponent(script)}`), {
      method: 'POST',
      headers: { authorization: `Bearer ${berth.token}` },
    })
  const saving = await post(`trap "touch /tmp/saved; echo saved; exit 5" HUP; echo ready; sleep ${seconds(5)} & wait`)
  await until(() => processesWith(`sleep\0${seconds(5)}`).length === 1)
  // This one ends long before all of its output is sent.
  const long = (await post('trap "" HUP; head -c 900000 /dev/zero; exit 6')).body!.values()
  const first = (await long.next()).value!
  const [frames, rest] = await Promise.all([
    saving.arrayBuffer(),
    remaining(long),
    end(berth.children.at(-1)!, 'SIGTERM'),
  ])
  expect(Buffer.from(frames).toString('latin1')).toBe('\x01ready\n\x01saved\n\x03\x05')
  const sent = Buffer.concat([first, ...rest])
  expect(sent.length).toBeGreaterThan(900_000)
  expect(sent.subarray(-2)).toEqual(Buffer.from([3, 6]))
  expect(processesWith(seconds(5))).toEqual([])
  await berth.up()
  expect(await (await sh('test -e /tmp/saved')).exit()).toBe(0)
  const again = await attach(client)
  again.socket.send(Buffer.from('\n'))
  expect(await again.exit()).toBe(6)
})

async function remaining(pieces: AsyncIterable<Uint8Array>): Promise<Uint8Array[]> {
  const all: Uint8Array[] = []
  for await (const piece of pieces) all.push(piece)
  return all
}

describe('sessions end and leave nothing', () => {
  const start = async (nth: number, name = 'box') => {
    const client = await sh(`sleep ${seconds(nth)}`, '&tty=true', name)
    await until(() => processesWith(`sleep\0${seconds(nth)}`).length > 0)
    return client
  }
  const isGone = (nth: number) => until(() => processesWith(seconds(nth)).length === 0 && sockets().length === 0)

  test('when their sandbox is restarted', async () => {
    const client = await start(6)
    expect((await api('POST', '/box/restart')).status).toBe(200)
    expect(await client.exit()).toBe(137)
    await isGone(6)
    expect(await list()).toEqual([])
  })

  test('when their sandbox is deleted', async () => {
    await api('POST', '', { name: 'other' })
    const client = await start(7, 'other')
    client.cut()
    expect((await api('DELETE', '/other')).status).toBe(204)
    await isGone(7)
  })

  test('when the platform is stopped', async () => {
    const client = await start(8)
    await berth.cli('down')
    await client.untilClosed()
    expect(processesWith(seconds(8))).toEqual([])
    await berth.up()
    expect(await list()).toEqual([])
    expect(sockets()).toEqual([])
    const missing = await ExecSocket.attempt(at(`/${client.sessionId}`), berth.token)
    expect((missing as Refused).status).toBe(404)
  })

  test('when the platform is stopped after its control plane was killed', async () => {
    await start(9)
    await killControlPlane()
    await berth.cli('down')
    expect(processesWith(seconds(9))).toEqual([])
    await berth.up()
    expect(sockets()).toEqual([])
  })
})
