// Commands in a real sandbox, with both transports of the public client library and with raw sockets.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { ExecError, type Sprite, SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { ExecSocket } from '../../support/exec.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let direct: Sprite
let control: Sprite

beforeAll(async () => {
  await berth.up()
  const options = { baseURL: berth.addresses.sandbox }
  const client = new SpritesClient(berth.token, options)
  await client.createSprite('box')
  direct = client.sprite('box')
  control = new SpritesClient(berth.token, { ...options, controlMode: true }).sprite('box')
})

afterAll(() => berth.destroy())

const query = (argv: string[], extra = '') =>
  `${argv.map((word) => `cmd=${encodeURIComponent(word)}`).join('&')}${extra}`
const at = (rest: string) => `${berth.addresses.sandbox}/v1/sandboxes/box/${rest}`
const run = (argv: string[], extra = '') => ExecSocket.open(at(`exec?${query(argv, extra)}`), berth.token)
const sh = (script: string, extra = '') => run(['sh', '-c', script], extra)

/** The error with which the client library reports a failed command. */
async function failure(promise: Promise<unknown>): Promise<{ code: number; stderr: string }> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  )
  if (!(error instanceof ExecError)) throw new Error(`it did not fail as a command does: ${error}`)
  return { code: error.exitCode, stderr: String(error.stderr) }
}

/** Processes of the host whose command line contains the word; those of boxes are visible there. */
function processesWith(word: string): number[] {
  const pids = readdirPids()
  return pids.filter((pid) => readIfThere(`/proc/${pid}/cmdline`).includes(word))
}

describe.each(['direct', 'control'] as const)('the client library, %s', (transport) => {
  const sprite = () => (transport === 'direct' ? direct : control)
  afterAll(() => control.closeControlConnection())

  test('runs commands and returns their output and exit code', async () => {
    const done = await sprite().execFile('sh', ['-c', 'echo out; echo err >&2; pwd; id -u'])
    expect(done).toEqual({ stdout: 'out\n/home/sprite\n0\n', stderr: 'err\n', exitCode: 0 })
    const there = await sprite().execFile('sh', ['-c', 'pwd; echo $A'], { cwd: '/tmp', env: { A: 'b c' } })
    expect(there.stdout).toBe('/tmp\nb c\n')
  })

  test('loses no output of a hundred fast commands', async () => {
    for (let batch = 0; batch < 10; batch++) {
      const numbers = Array.from({ length: 10 }, (_, i) => 500 + batch * 10 + i)
      const done = await Promise.all(numbers.map((n) => sprite().execFile('seq', ['1', String(n)])))
      for (const [i, { stdout }] of done.entries()) expect(String(stdout).split('\n').length).toBe(numbers[i]! + 1)
    }
  })

  test('reports why a command could not run or which signal ended it', async () => {
    expect(await failure(sprite().execFile('no-such-program'))).toEqual({
      code: 127,
      stderr: 'exec: "no-such-program": not found\n',
    })
    expect(await failure(sprite().execFile('/etc/passwd'))).toMatchObject({ code: 126 })
    expect(await failure(sprite().execFile('sh', ['-c', 'exit 7']))).toMatchObject({ code: 7 })
    expect(await failure(sprite().execFile('sh', ['-c', 'kill -9 $$']))).toMatchObject({ code: 137 })
  })
})

describe('the client library', () => {
  test('sends input and signals, and reads output', async () => {
    const command = direct.spawn('sh', [
      '-c',
      'trap "echo term; exit 3" TERM; while read line; do echo got $line; done; sleep 60 & wait',
    ])
    let out = ''
    command.stdout.on('data', (data) => {
      out += data
    })
    await once(command, 'spawn')
    command.stdin.write('one\n')
    await until(() => out === 'got one\n')
    command.stdin.end()
    command.kill('SIGTERM')
    expect(await command.wait()).toBe(3)
    expect(out).toBe('got one\nterm\n')
  })

  test('attaches to a terminal, detaches and attaches again', async () => {
    const command = direct.createSession('bash', ['--norc'], { rows: 30, cols: 100 })
    let out = ''
    let id = ''
    command.on('message', (message) => {
      if (message.type === 'session_info') id = message.session_id
    })
    command.stdout.on('data', (data) => {
      out += data
    })
    await until(() => id !== '')
    command.stdin.write('stty size; echo mark-$((1+1))\n')
    await until(() => out.includes('mark-2'))
    expect(out).toContain('30 100')
    const listed = await direct.listSessions()
    expect(listed).toMatchObject([{ id, command: '/usr/bin/bash --norc', tty: true, isActive: true }])

    const again = direct.attachSession(id)
    let seen = ''
    again.stdout.on('data', (data) => {
      seen += data
    })
    await until(() => seen.includes('mark-2'))
    again.resize(132, 43)
    again.stdin.write('stty size; exit 4\n')
    expect(await again.wait()).toBe(1) // the only code this client reports for a failed terminal
    expect(seen).toContain('43 132')
    expect(await direct.listSessions()).toEqual([])
  })

  test('kills a session and gets the events', async () => {
    const command = direct.spawn('sleep', ['300'])
    let id = ''
    await until(async () => {
      id = (await direct.listSessions())[0]?.id ?? ''
      return id !== ''
    })
    const events = []
    for await (const event of await direct.killSession(id, 'SIGTERM', '30s')) events.push(event)
    expect(events.map((event) => event.type)).toEqual(['signal', 'exited', 'complete'])
    expect(events.at(-1)).toMatchObject({ exitCode: 143 })
    expect(await command.wait()).toBe(143)
  })
})

describe('a plain request', () => {
  // Parsed by bytes, because the client library expects one frame per read, and a busy host joins frames.
  const post = async (argv: string[], input?: string) => {
    const reply = await fetch(at(`exec?${query(argv, input === undefined ? '' : '&stdin=true')}`), {
      method: 'POST',
      headers: { authorization: `Bearer ${berth.token}` },
      ...(input === undefined ? {} : { body: input }),
    })
    expect(reply.status).toBe(200)
    return Buffer.from(await reply.arrayBuffer()).toString('latin1')
  }

  test('runs a command with input and returns its output and exit code', async () => {
    expect(await post(['cat'], 'input')).toBe('\x01input\x03\x00')
    expect(await post(['sh', '-c', 'echo err >&2; exit 9'])).toBe('\x02err\n\x03\x09')
    expect(await post(['no-such-program'])).toBe('\x02exec: "no-such-program": not found\n\x03\x7f')
  })
})

describe('a socket', () => {
  test('carries twenty megabytes in and out', async () => {
    const data = randomBytes(20_000_000)
    const client = await run(['cat'], '&stdin=true')
    for (let from = 0; from < data.length; from += 500_000) client.stdin(data.subarray(from, from + 500_000))
    client.endStdin()
    expect(await client.exit()).toBe(0)
    expect(client.bytes(1).equals(data)).toBe(true)
  })

  test('can be one of many clients of a command', async () => {
    const first = await sh('read x; seq 1 20000; exit 6', '&stdin=true')
    await until(() => first.said('session_info') !== undefined)
    const others = await Promise.all(
      Array.from({ length: 20 }, () => ExecSocket.open(at(`exec/${first.sessionId}`), berth.token)),
    )
    first.stdin('\n')
    expect(await Promise.all([first, ...others].map((one) => one.exit()))).toEqual(Array(21).fill(6))
    for (const one of others) expect(one.output(1)).toBe(first.output(1))
    expect(first.output(1).trim().split('\n').length).toBe(20_000)
  })

  test('reports ports that its command opens and closes', async () => {
    // A port that opens and closes between two polls is not seen, so each step waits for its event.
    const script =
      'use IO::Socket::INET; <STDIN>; my $s = IO::Socket::INET->new(Listen => 1, LocalPort => 7001) or die; <STDIN>; close $s; sleep 60'
    const watcher = await direct.watchPorts()
    try {
      await watcher.next() // the first poll is done; later events are changes
      const client = await run(['perl', '-e', script], '&stdin=true')
      client.stdin('\n')
      await until(() => client.said('port_opened') !== undefined)
      expect(client.said('port_opened')).toMatchObject({ port: 7001, address: '0.0.0.0', pid: expect.any(Number) })
      client.stdin('\n')
      await until(() => client.said('port_closed') !== undefined)
      expect(client.said('port_closed')).toMatchObject({ port: 7001 })
      client.say({ type: 'signal', signal: 'KILL' })
      expect(await client.exit()).toBe(137)
    } finally {
      watcher.close()
    }
  })
})

describe('a terminal', () => {
  test('has a name in the sandbox', async () => {
    const client = await sh('tty; readlink -f /proc/self/fd/0; exit 3', '&tty=true')
    expect(await client.exit()).toBe(3)
    expect(client.output()).toMatch(/^(\/dev\/pts\/\d+)\r\n\1\r\n$/)
  })

  test('can be opened by name, has job control and accepts Ctrl-C', async () => {
    const client = await run(['bash', '--norc', '-i'], '&tty=true&rows=20&cols=70')
    client.socket.send(Buffer.from('echo a > /dev/tty; echo b > /dev/stdout; sleep 300\n'))
    await until(() => /[\r\n]a\r\nb\r\n/.test(client.output()))
    client.socket.send(Buffer.from([3]))
    client.socket.send(Buffer.from('echo code-$?; sleep 300 & jobs; kill %1; exit 0\n'))
    expect(await client.untilClosed()).toBe(1000)
    expect(client.output()).toContain('code-130')
    expect(client.output()).toContain('[1]')
    expect(client.output()).not.toContain('no job control')
  })
})

describe('nothing is left running', () => {
  // Unique to this run, because all processes of the host are searched.
  const seconds = (nth: number) => `4711.${process.pid}${nth}`

  test('after the grace period of a lost connection', async () => {
    const client = await sh(`sleep ${seconds(1)} & wait`, '&max_run_after_disconnect=300ms')
    await until(() => processesWith(seconds(1)).length > 0)
    client.cut()
    await until(() => processesWith(seconds(1)).length === 0)
  })

  test('when the client of a request disconnects', async () => {
    const gone = new AbortController()
    const url = at(`exec?${query(['sh', '-c', `echo; sleep ${seconds(2)} & wait`])}`)
    const reply = await fetch(url, {
      method: 'POST',
      headers: { authorization: `Bearer ${berth.token}` },
      signal: gone.signal,
    })
    await until(() => processesWith(seconds(2)).length > 0)
    gone.abort()
    await reply.text().catch(() => {})
    await until(() => processesWith(seconds(2)).length === 0)
  })
})

function readdirPids(): number[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => pid > 0)
}

/** A process may exit while it is inspected. */
function readIfThere(file: string): string {
  try {
    return existsSync(file) ? readFileSync(file, 'utf8') : ''
  } catch {
    return ''
  }
}
