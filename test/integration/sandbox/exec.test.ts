import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { BoxCommand, BoxDriver, BoxSession, BoxState } from '../../../src/drivers/box/driver.ts'
import { createExecSessions } from '../../../src/live/sandbox/exec-sessions.ts'
import { ExecSocket } from '../../support/exec.ts'
import { usePlatform } from '../../support/platform.ts'
import { hostSessions } from '../../support/session.ts'
import { until } from '../../support/until.ts'

const directory = mkdtempSync(`${tmpdir()}/berth-exec-`)
const commands: ChildProcess[] = []
const given: BoxCommand[] = []
const held = new Set<BoxSession>()
const onHost = hostSessions(directory, held)

/** Tests that watch ports replace it. */
let box: BoxState = { is: 'down' }

/** Runs commands on the host, in a process group of their own. */
const boxes: Partial<BoxDriver> = {
  inspectBox: async () => box,
  spawnInBox(_spec, command) {
    given.push(command)
    const [program, ...args] = command.argv
    const env = { PATH: process.env.PATH ?? '', ...command.env }
    const child = spawn(program, args, { env, cwd: command.dir ?? directory, detached: true })
    child.kill = (signal) => {
      try {
        return process.kill(-child.pid!, signal)
      } catch {
        return false
      }
    }
    commands.push(child)
    return child
  },
  startSession(spec, command, start, events) {
    given.push(command)
    return onHost.startSession(spec, command, start, events)
  },
  findSessions: onHost.findSessions,
}

const platform = usePlatform({ boxes, sessions: createExecSessions({ keepaliveMs: 40 }) })
let address: string

const query = (argv: string[], extra = '') =>
  `${argv.map((word) => `cmd=${encodeURIComponent(word)}`).join('&')}${extra}`
const at = (rest: string, name = 'box') => `${address}/v1/sandboxes/${name}/${rest}`
const run = (argv: string[], extra = '') => ExecSocket.open(at(`exec?${query(argv, extra)}`), platform.rootToken)
const sh = (script: string, extra = '') => run(['sh', '-c', script], extra)
const attach = (id: string) => ExecSocket.open(at(`exec/${id}`), platform.rootToken)
const kill = (id: string, rest = '') => platform.callSandbox('POST', `/v1/sandboxes/box/exec/${id}/kill${rest}`)
const sessions = async () => (await platform.callSandbox('GET', '/v1/sandboxes/box/exec')).body
/** Waits until there has been no output for a while, because it is not read or the command has ended. */
const untilStill = () =>
  until(async () => {
    const [session] = (await sessions()).sessions
    return !session || Date.now() - Date.parse(session.last_activity) > 400
  })
const lines = (text: string) =>
  text
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
const version = expect.stringMatching(/^0\.0\.1-rc\d+$/)
const isGone = (pid: number) => !existsSync(`/proc/${pid}`)

beforeAll(async () => {
  address = await platform.sandboxServer.listen({ host: '127.0.0.1', port: 0 })
})

beforeEach(async () => {
  given.length = 0
  const made = await platform.callSandbox('POST', '/v1/sandboxes', {
    body: { name: 'box', environment: { A: '1', B: '2' } },
  })
  expect(made.status).toBe(201)
})

afterAll(async () => {
  for (const child of commands) if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL')
  for (const session of held) session.signal(9)
  await until(() => held.size === 0)
  rmSync(directory, { recursive: true })
})

describe('a command on a socket', () => {
  test('sends its session, its output and its exit code, and closes at once', async () => {
    const client = await sh('printf out; printf err >&2; exit 3')
    expect(await client.untilClosed()).toBe(1000)
    expect(client.texts[0]).toEqual({
      type: 'session_info',
      session_id: expect.stringMatching(/^\d+$/),
      command: 'sh -c printf out; printf err >&2; exit 3',
      created: expect.any(Number),
      cols: 80,
      rows: 24,
      is_owner: true,
      tty: false,
    })
    expect(typeof client.frames[0]).toBe('string')
    expect([client.output(1), client.output(2)]).toEqual(['out', 'err'])
    expect(client.frames.at(-2)).toBe('{"type":"exit","exit_code":3,"code":3}')
    expect(client.frames.at(-1)).toEqual(Buffer.from([3, 3]))
    expect(client.headers).toMatchObject({
      'x-sprite-capabilities': 'signal',
      'sprite-version': version,
      'fly-request-id': expect.any(String),
    })
  })

  test('also runs under the alias of the path', async () => {
    const client = await ExecSocket.open(`${address}/v1/sprites/box/exec?cmd=true`, platform.rootToken)
    expect(await client.exit()).toBe(0)
  })

  test('gets the environment of its sandbox, overridden by its own', async () => {
    const client = await sh('echo $A $B $C; pwd', '&env=B%3D3&env=C%3D4&dir=/tmp')
    await client.exit()
    expect(client.output(1)).toBe('1 3 4\n/tmp\n')
    expect(given[0]!.env).toEqual({ A: '1', B: '3', C: '4' })
  })

  test('gets end of file at once unless stdin is requested', async () => {
    const client = await run(['cat'])
    client.stdin('not for it')
    expect(await client.exit()).toBe(0)
    expect(client.output(1)).toBe('')
  })

  test('reads its input until the end', async () => {
    const client = await run(['cat'], '&stdin=true')
    client.stdin('one ')
    client.stdin('two')
    client.endStdin()
    expect(await client.exit()).toBe(0)
    expect(client.output(1)).toBe('one two')
  })

  test('loses no output of a fast command', async () => {
    const clients = await Promise.all(Array.from({ length: 40 }, (_, i) => sh(`seq ${i} 999; seq 1 ${i + 1} >&2`)))
    await Promise.all(clients.map((client) => client.exit()))
    for (const [i, client] of clients.entries()) {
      expect(client.output(1).split('\n').length).toBe(1001 - i)
      expect(client.output(2).split('\n').length).toBe(i + 2)
    }
  })

  test('ends with its process, even if background processes hold the pipes', async () => {
    const client = await sh('sleep 300 & echo $!')
    expect(await client.exit()).toBe(0)
    process.kill(Number(client.output(1)), 'SIGKILL')
  })

  test('accepts signals by name and number, and reports 128 + n', async () => {
    const client = await sh('trap "echo usr1" USR1; echo ready; while :; do sleep 0.02; done')
    await until(() => client.output(1) === 'ready\n')
    client.say({ type: 'signal', signal: 'USR1' })
    await until(() => client.output(1) === 'ready\nusr1\n')
    client.say({ type: 'signal', signal: 'NONSENSE' })
    client.socket.send('nor is this')
    client.say({ type: 'signal', signal: 9 })
    expect(await client.exit()).toBe(137)
  })

  test('sends keepalive messages while it is silent', async () => {
    const client = await sh('read x', '&stdin=true')
    await until(() => client.texts.filter((text) => text.type === 'keepalive').length > 2)
    client.stdin('\n')
    expect(await client.exit()).toBe(0)
  })

  test('sends the version on every socket', async () => {
    for (const path of ['ports/watch', 'fs/watch', 'proxy', 'control']) {
      const { headers, socket } = await ExecSocket.open(at(path), platform.rootToken)
      expect(headers['sprite-version'], path).toEqual(version)
      socket.terminate()
    }
  })

  test('reports a port that it opens, and none that was open before', async () => {
    box = { is: 'up', pid: process.pid }
    try {
      const client = await run(['perl', '-e', 'socket S, 2, 1, 0; listen S, 1; print "listens\n"; sleep 300'])
      await until(() => client.said('port_opened') !== undefined)
      expect(client.texts.filter(({ type }) => type === 'port_opened')).toHaveLength(1)
      await kill(client.sessionId)
    } finally {
      box = { is: 'down' }
    }
  })

  test('waits for a client that does not read, and then delivers every byte', async () => {
    const client = await sh('head -c 60000000 /dev/zero; echo done >&2')
    client.socket.pause()
    await untilStill()
    expect((await sessions()).count).toBe(1)
    client.socket.resume()
    expect(await client.exit()).toBe(0)
    expect(client.bytes(1).length).toBe(60_000_000)
    expect(client.output(2)).toBe('done\n')
  })

  test('reports that it could not be started', async () => {
    const client = await run(['/no/such/program'])
    expect(await client.exit()).toBe(127)
    expect(client.output(2)).toBe('exec: "/no/such/program": not found\n')
  })
})

describe('refusals', () => {
  test('come before the upgrade, with a reason', async () => {
    const attempt = (rest: string, token: string | null = platform.rootToken) => ExecSocket.attempt(at(rest), token)
    expect(await attempt('exec?cmd=true', null)).toMatchObject({ status: 401, body: { error: 'unauthorized' } })
    expect(await attempt('exec?cmd=true', 'wrong')).toMatchObject({ status: 401 })
    expect(await attempt('exec')).toMatchObject({ status: 400, body: { error: 'bad_request', message: /no command/ } })
    expect(await attempt('exec?cmd=x&env=A')).toMatchObject({ status: 400 })
    expect(await attempt('exec/77')).toMatchObject({
      status: 404,
      headers: { 'sprite-version': version },
      body: { message: 'session not found: 77' },
    })
    expect(await attempt('exec?id=77')).toMatchObject({ status: 404 })
    expect(await ExecSocket.attempt(at('exec?cmd=true', 'other'), platform.rootToken)).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: 'sandbox not found' },
    })
    expect(given).toEqual([])
  })

  test('apply to read-only tokens and tokens of other organizations', async () => {
    const reader = await platform.createToken('read', 'personal')
    await platform.createOrg('others')
    const stranger = await platform.createToken('org', 'others')
    const inside = await platform.createToken('sandbox', 'personal', { sandbox: 'box' })
    await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'second' } })
    for (const path of ['exec?cmd=true', 'exec/7', 'control']) {
      expect(await ExecSocket.attempt(at(path), reader)).toMatchObject({ status: 403 })
      expect(await ExecSocket.attempt(at(path), stranger)).toMatchObject({ status: 404 })
      expect(await ExecSocket.attempt(at(path, 'second'), inside)).toMatchObject({ status: 404 })
    }
    for (const path of ['exec?cmd=true', 'exec/7/kill']) {
      const url = `/v1/sandboxes/box/${path}`
      expect((await platform.callSandbox('POST', url, { token: reader })).status).toBe(403)
      expect((await platform.callSandbox('POST', url, { token: stranger })).status).toBe(404)
      expect((await platform.callSandbox('POST', url, { token: null })).status).toBe(401)
    }
    expect((await platform.callSandbox('GET', '/v1/sandboxes/box/exec', { token: reader })).status).toBe(200)
    expect((await platform.callSandbox('GET', '/v1/sandboxes/box/exec/7', { token: reader })).status).toBe(403)
    expect(given).toEqual([])
    const client = await ExecSocket.open(at('exec?cmd=true'), inside)
    expect(await client.exit()).toBe(0)
  })
})

describe('sessions', () => {
  test('are listed while they run, also to HEAD', async () => {
    expect(await sessions()).toEqual({ count: 0, sessions: [] })
    const client = await sh('echo hello; cat', '&stdin=true&dir=/tmp')
    await until(() => client.output(1) === 'hello\n')
    expect(await sessions()).toEqual({
      count: 1,
      sessions: [
        {
          id: client.sessionId,
          command: expect.stringMatching(/^\/.*\/sh -c echo hello; cat$/),
          workdir: '/tmp',
          created: expect.stringMatching(/^\d{4}-.*Z$/),
          tty: false,
          bytes_per_second: expect.any(Number),
          is_active: true,
          last_activity: expect.stringMatching(/Z$/),
        },
      ],
    })
    const head = await platform.callSandbox('HEAD', '/v1/sprites/box/exec')
    expect([head.status, head.headers['sprite-version']]).toEqual([200, version])
    expect((await platform.callSandbox('GET', '/v1/sandboxes/box/exec?cmd=true')).status).toBe(400)
    expect((await platform.callSandbox('GET', `/v1/sandboxes/box/exec/${client.sessionId}`)).status).toBe(400)
    client.endStdin()
    await client.exit()
    expect(await sessions()).toEqual({ count: 0, sessions: [] })
    expect(await platform.callSandbox('GET', `/v1/sandboxes/box/exec/${client.sessionId}`)).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: `session not found: ${client.sessionId}` },
    })
  })

  test('survive a lost connection, and send the missed output to the next client', async () => {
    const first = await sh('echo one; echo two >&2; read line; echo got $line; read end', '&stdin=true')
    await until(() => first.output(1) === 'one\n' && first.output(2) === 'two\n')
    first.cut()
    const second = await attach(first.sessionId)
    const third = await ExecSocket.open(at(`exec?id=${first.sessionId}`), platform.rootToken)
    for (const client of [second, third]) {
      await until(() => client.output(1) === 'one\n' && client.output(2) === 'two\n')
      expect(client.frames[0]).toContain('"session_info"')
      expect(client.said('session_info')).toMatchObject({ is_owner: false, session_id: first.sessionId })
    }
    second.stdin('three\n')
    await until(() => third.output(1) === 'one\ngot three\n')
    third.stdin('\n')
    expect(await Promise.all([second.exit(), third.exit()])).toEqual([0, 0])
    expect(second.output(1)).toBe('one\ngot three\n')
  })

  test('end some time after the last client has disconnected', async () => {
    const client = await sh('echo $$; exec sleep 300', '&max_run_after_disconnect=200ms')
    await until(() => client.output(1) !== '')
    const pid = Number(client.output(1))
    const again = await attach(client.sessionId)
    client.socket.close()
    await until(() => again.texts.filter((text) => text.type === 'keepalive').length > 8)
    expect(isGone(pid)).toBe(false)
    again.cut()
    await until(() => isGone(pid))
    await until(async () => (await sessions()).count === 0)
  })

  test('continue without clients if allowed, and forget only old output', async () => {
    const written = `${directory}/written`
    const script = `seq 1 100000; echo end; touch ${written}; exec sleep 300`
    const client = await sh(script, '&max_run_after_disconnect=1h')
    await until(() => client.said('session_info') !== undefined)
    client.cut()
    await until(() => existsSync(written))
    await untilStill()
    const again = await attach(client.sessionId)
    await until(() => again.output(1).endsWith('end\n'))
    expect(again.bytes(1).length).toBe(256 * 1024)
    expect((await kill(client.sessionId)).status).toBe(200)
    expect(await again.exit()).toBe(143)
  })

  test('are ended by kill, which reports the progress', async () => {
    const client = await sh('sleep 300 & trap "kill $!; exit 143" TERM; echo $$; wait')
    await until(() => client.output(1).endsWith('\n'))
    const killed = await kill(client.sessionId, '?signal=TERM&timeout=10s')
    expect(killed.headers['content-type']).toBe('application/x-ndjson')
    expect(lines(killed.body)).toEqual([
      { type: 'signal', message: expect.any(String), signal: 'SIGTERM', pid: Number(client.output(1)) },
      { type: 'exited', message: expect.any(String) },
      { type: 'complete', exit_code: 143 },
    ])
    expect(await client.exit()).toBe(143)
    expect(await kill(client.sessionId)).toMatchObject({ status: 410, body: { error: 'gone' } })
    expect(await kill('12')).toMatchObject({ status: 404, body: { message: 'session not found: 12' } })
  })

  test('that ignore the signal are killed after the timeout', async () => {
    const client = await sh('trap "" TERM; echo ready; while :; do sleep 0.05; done')
    await until(() => client.output(1) === 'ready\n')
    expect((await kill(client.sessionId, '?signal=nonsense')).status).toBe(400)
    const killed = await kill(client.sessionId, '?timeout=100ms')
    expect(lines(killed.body).map(({ type }) => type)).toEqual(['signal', 'timeout', 'killed', 'complete'])
    expect(await client.exit()).toBe(137)
  })

  test('are killed as the body of the request says', async () => {
    const killAs = (id: string, body: object, rest = '') =>
      platform.callSandbox('POST', `/v1/sandboxes/box/exec/${id}/kill${rest}`, { body })
    const client = await sh('trap "echo hup" HUP; trap "" TERM; echo ready; while :; do sleep 0.02; done')
    await until(() => client.output(1) === 'ready\n')
    for (const body of [{ signal: 'nonsense' }, { signal: {} }, { timeout: -1 }, { timeout: [] }])
      expect((await killAs(client.sessionId, body)).status, JSON.stringify(body)).toBe(400)
    const told = await killAs(client.sessionId, { signal: 'HUP', timeout: '0s' }, '?signal=KILL&timeout=10s')
    expect(lines(told.body)).toMatchObject([{ type: 'signal', signal: 'SIGHUP' }, { type: 'complete' }])
    await until(() => client.output(1) === 'ready\nhup\n')
    const killed = await killAs(client.sessionId, { signal: 15, timeout: 0.1 })
    expect(lines(killed.body).map(({ type }) => type)).toEqual(['signal', 'timeout', 'killed', 'complete'])
    expect(await client.exit()).toBe(137)
  })

  test('can be signalled without waiting', async () => {
    const client = await sh('trap "echo hup" HUP; echo ready; while :; do sleep 0.02; done')
    await until(() => client.output(1) === 'ready\n')
    const told = await kill(client.sessionId, '?signal=1&timeout=0s')
    expect(lines(told.body).map(({ type }) => type)).toEqual(['signal', 'complete'])
    await until(() => client.output(1) === 'ready\nhup\n')
    client.say({ type: 'signal', signal: 'KILL' })
    await client.exit()
  })
})

test.each(['', '&tty=true'])('a signal without a name ends a command too%s', async (extra) => {
  const client = await sh('echo ready; exec sleep 1000', extra)
  await until(() => client.output().includes('ready'))
  client.say({ type: 'signal', signal: '40' })
  await client.exit()
  expect((await sessions()).sessions).toEqual([])
})

describe('a terminal', () => {
  test('has the requested size and can be resized', async () => {
    const client = await sh('tty -s && stty size; read x; stty size; exit 5', '&tty=true&cols=100&rows=30')
    await until(() => client.output().includes('30 100'))
    expect(client.said('session_info')).toMatchObject({ tty: true, cols: 100, rows: 30 })
    client.say({ type: 'resize', cols: 132, rows: 50 })
    client.socket.send(Buffer.from('\n'))
    expect(await client.exit()).toBe(5)
    expect(client.output()).toContain('50 132')
    expect(client.closed).toEqual({ code: 4005 })
    expect(client.frames.at(-1)).toBe('{"type":"exit","exit_code":5,"code":5}')
  })

  test('closes with 1000 after success, and runs a shell by default', async () => {
    const client = await ExecSocket.open(at('exec?tty=true'), platform.rootToken)
    client.socket.send(Buffer.from('echo $TERM-$((40+2)); exit\n'))
    expect(await client.untilClosed()).toBe(1000)
    expect(client.output()).toContain('xterm-256color-42')
  })

  test('passes Ctrl-C on', async () => {
    const client = await sh('trap "echo caught; exit 9" INT; echo ready; while :; do sleep 0.05; done', '&tty=true')
    await until(() => client.output().includes('ready'))
    client.socket.send(Buffer.from([3]))
    expect(await client.exit()).toBe(9)
    expect(client.output()).toContain('caught')
  })

  test('continues without a connection', async () => {
    const client = await sh('echo first; read x; echo second-$x', '&tty=true')
    await until(() => client.output().includes('first'))
    client.cut()
    const again = await attach(client.sessionId)
    await until(() => again.output().includes('first'))
    again.socket.send(Buffer.from('now\n'))
    expect(await again.exit()).toBe(0)
    expect(again.output()).toContain('second-now')
  })

  test('delivers everything, also to a client that reads late', async () => {
    const client = await sh('seq 1 1000000; echo the-end', '&tty=true')
    client.socket.pause()
    await untilStill()
    client.socket.resume()
    expect(await client.exit()).toBe(0)
    const numbers = client.output().trim().split('\r\n')
    expect([numbers.length, numbers.at(-2), numbers.at(-1)]).toEqual([1_000_001, '1000000', 'the-end'])
  })

  test('buffers input that is not read without blocking others, and delivers all of it later', async () => {
    const text = `${'x'.repeat(99)}\n`.repeat(2000)
    const deaf = await run(['sleep', '1000'], '&tty=true')
    deaf.socket.send(Buffer.from(text))
    const late = await sh('stty -echo; echo ready; read go; head -n 2000 | wc -c; exit 3', '&tty=true')
    await until(() => late.output().includes('ready'))
    late.socket.send(Buffer.from(`go\n${text}`))
    expect(await late.exit()).toBe(3)
    expect(late.output()).toContain(String(text.length))
    expect((await sessions()).sessions).toHaveLength(1)
    deaf.say({ type: 'signal', signal: 'KILL' })
    expect(await deaf.exit()).toBe(137)
  })

  test('can be resized at the moment it ends', async () => {
    for (let turn = 0; turn < 25; turn++) {
      const client = await run(['true'], '&tty=true')
      while (!client.closed) {
        client.say({ type: 'resize', cols: 80 + (turn % 7), rows: 24 })
        await new Promise((resolve) => setImmediate(resolve))
      }
      expect(await client.exit()).toBe(0)
    }
  })
})

describe('a command as a request', () => {
  interface Posted {
    connection: Socket
    /** The chunks of the response, exactly as they were sent. */
    chunks: Buffer[]
    head: string
    isOver: boolean
  }

  function post(rest: string, body?: string | Buffer): Posted {
    const { hostname, port, pathname, search } = new URL(at(rest))
    const connection = connect(Number(port), hostname)
    const posted: Posted = { connection, chunks: [], head: '', isOver: false }
    let unread = Buffer.alloc(0)
    connection.on('error', () => {})
    connection.on('data', (data) => {
      unread = Buffer.concat([unread, data])
      if (posted.head === '') unread = takeHead(posted, unread)
      if (posted.head !== '') unread = takeChunks(posted, unread)
    })
    const length = body === undefined ? '' : `content-length: ${body.length}\r\n`
    connection.write(
      `POST ${pathname}${search} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${platform.rootToken}\r\n${length}\r\n`,
    )
    if (body !== undefined) connection.write(body)
    return posted
  }

  function takeHead(posted: Posted, unread: Buffer): Buffer<ArrayBuffer> {
    const end = unread.indexOf('\r\n\r\n')
    if (end < 0) return Buffer.from(unread)
    posted.head = unread.toString('latin1', 0, end)
    return Buffer.from(unread.subarray(end + 4))
  }

  function takeChunks(posted: Posted, unread: Buffer): Buffer<ArrayBuffer> {
    let at = 0
    for (;;) {
      const end = unread.indexOf('\r\n', at)
      const size = end < 0 ? Number.NaN : Number.parseInt(unread.toString('latin1', at, end), 16)
      if (!(unread.length >= end + 4 + size)) return Buffer.from(unread.subarray(at))
      if (size === 0) posted.isOver = true
      else posted.chunks.push(Buffer.from(unread.subarray(end + 2, end + 2 + size)))
      at = end + 4 + size
    }
  }

  async function finished(rest: string, body?: string | Buffer) {
    const posted = post(rest, body)
    await until(() => posted.isOver)
    posted.connection.destroy()
    const of = (stream: number) =>
      Buffer.concat(posted.chunks.filter((one) => one[0] === stream).map((one) => one.subarray(1)))
    return { ...posted, out: of(1), err: of(2) }
  }

  test('responds with frames, the last of which is the exit code', async () => {
    const { head, chunks, out, err } = await finished(`exec?${query(['sh', '-c', 'echo out; echo err >&2; exit 4'])}`)
    expect(head).toMatch(/^HTTP\/1\.1 200 .*content-type: application\/octet-stream/s)
    expect([out.toString(), err.toString()]).toEqual(['out\n', 'err\n'])
    expect(chunks.at(-1)).toEqual(Buffer.from([3, 4]))
  })

  test('passes the body as input, in frames of at most 32 KiB', async () => {
    const body = Buffer.alloc(3_000_000, 'x')
    const { chunks, out } = await finished('exec?cmd=cat&stdin=true', body)
    expect(out.equals(body)).toBe(true)
    expect(Math.max(...chunks.map((chunk) => chunk.length))).toBeLessThanOrEqual(32 * 1024)
    expect(chunks.at(-1)).toEqual(Buffer.from([3, 0]))
  })

  test('has no input unless requested, and an empty one without a body', async () => {
    expect((await finished('exec?cmd=cat', 'unread')).out.length).toBe(0)
    expect((await finished('exec?cmd=cat&stdin=true')).chunks.at(-1)).toEqual(Buffer.from([3, 0]))
  })

  test.each(['tty=true', 'id=7', 'detachable=true', 'cc=true'])('refuses %s', async (extra) => {
    const refused = await platform.callSandbox('POST', `/v1/sandboxes/box/exec?cmd=true&${extra}`)
    expect(refused).toMatchObject({ status: 400, body: { error: 'bad_request' } })
  })

  test('requires a command', async () => {
    expect((await platform.callSandbox('POST', '/v1/sandboxes/box/exec')).status).toBe(400)
  })

  test('ends the command when the client hangs up', async () => {
    const { connection, chunks } = post(`exec?${query(['sh', '-c', 'echo $$; exec sleep 300'])}`)
    await until(() => chunks.length > 0)
    const pid = Number(chunks[0]!.subarray(1).toString())
    connection.destroy()
    await until(() => isGone(pid))
  })
})

describe('a control channel', () => {
  const open = (rest = '', headers = {}) => ExecSocket.open(at(`control${rest}`), platform.rootToken, headers)
  const start = (client: ExecSocket, op: string, args: object, id?: string) =>
    client.socket.send(`control:${JSON.stringify({ type: 'op.start', ...(id ? { id } : {}), op, args })}`)
  const completed = (client: ExecSocket, count = 1) =>
    until(() => client.texts.filter((text) => text.type === 'op.complete').length === count)

  test('runs commands one after another, with input', async () => {
    const client = await open()
    start(client, 'exec', { cmd: ['sh', '-c', 'echo a; exit 3'], stdin: 'false' }, 'first')
    await completed(client)
    expect(client.said('op.complete')).toEqual({ type: 'op.complete', id: 'first', args: { ok: true, exitCode: 3 } })
    expect(client.frames.at(-2)).toEqual(Buffer.from([3, 3]))
    start(client, 'exec', { cmd: ['cat'], stdin: 'true', env: ['X=1'] })
    client.stdin('b')
    client.endStdin()
    await completed(client, 2)
    expect(client.output(1)).toBe('a\nb')
    expect(client.closed).toBeUndefined()
    client.cut()
  })

  test('accepts raw input, and messages in binary frames', async () => {
    const client = await open()
    start(client, 'exec', { cmd: ['cat'], stdin: 'true' })
    client.socket.send(Buffer.from('as it is'))
    client.endStdin()
    await completed(client)
    expect(client.output(1)).toBe('as it is')
    start(client, 'exec', { cmd: ['sleep', '300'] })
    client.socket.send(Buffer.from('{"type":"signal","signal":"KILL"}'))
    await completed(client, 2)
    expect(client.texts.at(-1)).toMatchObject({ args: { exitCode: 137 } })
    start(client, 'exec', { cmd: ['sh', '-c', 'read x; stty size'], tty: 'true', rows: '30', cols: '90' })
    client.socket.send(Buffer.from('{"type":"resize","cols":111,"rows":22}'))
    client.socket.send(Buffer.from('\n'))
    await completed(client, 3)
    expect(client.output()).toContain('22 111')
    client.cut()
  })

  test('attaches to a running session', async () => {
    const first = await sh('echo hello; read x', '&stdin=true')
    await until(() => first.output(1) === 'hello\n')
    const client = await open()
    start(client, 'exec', { id: first.sessionId })
    await until(() => client.output(1) === 'hello\n')
    client.stdin('\n')
    await completed(client)
    start(client, 'exec', { id: first.sessionId })
    await until(() => client.said('op.error') !== undefined)
    expect(client.said('op.error')).toMatchObject({ args: { code: 'op.not_found' } })
    client.cut()
  })

  test('refuses unknown, overlapping and unexpected messages, and stays open', async () => {
    const client = await open()
    client.socket.send(Buffer.from([0, 1]))
    await until(() => client.texts.length === 1)
    start(client, 'nonsense', {}, 'x')
    await until(() => client.texts.length === 2)
    expect(client.texts).toEqual([
      { type: 'op.error', args: { code: 'op.not_active', message: expect.any(String), error: expect.any(String) } },
      {
        type: 'op.error',
        id: 'x',
        args: { code: 'op.not_found', message: expect.any(String), error: expect.any(String) },
      },
    ])
    start(client, 'exec', { cmd: ['cat'], stdin: 'true' })
    start(client, 'exec', { cmd: ['cat'] })
    start(client, 'exec', {})
    await until(() => client.texts.filter((text) => text.type === 'op.error').length === 4)
    client.endStdin()
    await completed(client)
    client.socket.send(Buffer.from([0, 1])) // this frame was already in flight
    start(client, 'exec', {})
    await until(() => client.texts.at(-1)?.type === 'op.error')
    expect(client.texts.at(-1)).toMatchObject({ args: { code: 'bad_request' } })
    start(client, 'exec', { cmd: ['true'] })
    await completed(client, 2)
    client.cut()
  })

  test('starts the operation in its URL', async () => {
    const client = await open('?op=exec&cmd=echo&cmd=hi')
    await completed(client)
    expect(client.output(1)).toBe('hi\n')
    client.cut()
  })

  test('is not available to a client that cannot use it', async () => {
    const refused = await ExecSocket.attempt(at('control'), platform.rootToken, { 'user-agent': 'sprites-go-sdk/1.0' })
    expect(refused).toMatchObject({ status: 404 })
  })
})

describe('the quota of running commands', () => {
  const used = async () => {
    const { body } = await platform.call('GET', '/v1/orgs/personal/quotas')
    return body.quotas.find((quota: { name: string }) => quota.name === 'commands').used
  }
  const attempt = () => ExecSocket.attempt(at(`exec?${query(['sleep', '60'])}`), platform.rootToken)

  test('counts commands until they end, also when no client is connected', async () => {
    await platform.setQuotas({ commands: 1 })
    const first = await sh('read line', '&stdin=true&tty=true&max_run_after_disconnect=0')
    await until(async () => (await used()) === 1)
    first.cut()
    await first.untilClosed()
    expect(await used()).toBe(1)
    expect(await attempt()).toMatchObject({ status: 429, body: { error: 'quota_exceeded', limit: 1 } })
    const posted = await platform.callSandbox('POST', '/v1/sandboxes/box/exec?cmd=true')
    expect(posted).toMatchObject({ status: 429, headers: { 'retry-after': '1' } })
    for (const { id } of (await sessions()).sessions) await kill(String(id), '?signal=SIGKILL')
    await until(async () => (await used()) === 0)
    expect(await (await sh('exit 3')).exit()).toBe(3)
  })

  test('is exact when many start at the same time', async () => {
    await platform.setQuotas({ commands: 3 })
    const results = await Promise.all(Array.from({ length: 12 }, attempt))
    const open = results.filter((each) => each instanceof ExecSocket)
    // One that lost the race after its upgrade is closed with "try again later".
    await until(() => open.filter((each) => each.closed === undefined).length <= 3)
    const running = open.filter((each) => each.closed === undefined)
    const closed = open.filter((each) => each.closed !== undefined)
    expect(running).toHaveLength(3)
    expect(closed.map((each) => each.closed?.code)).toEqual(closed.map(() => 1013))
    expect(await used()).toBe(3)
    for (const { id } of (await sessions()).sessions) await kill(String(id), '?signal=SIGKILL')
    await until(async () => (await used()) === 0)
    for (const each of open) each.cut()
  })
})
