// Connections into a sandbox and the ports it opens, with the public client library and with raw messages.
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect, createServer, type Server } from 'node:net'
import { networkInterfaces } from 'node:os'
import { type Sprite, type SpriteCommand, SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { Berth } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
let sprite: Sprite
const commands: SpriteCommand[] = []

/** Echoes on some addresses; on the last port it sends endlessly and counts the bytes. */
const server = `
use Socket; $SIG{CHLD} = 'IGNORE'; $SIG{PIPE} = 'IGNORE';
sub on { my ($address, $port, $do) = @_;
  my $six = $address =~ /:/;
  socket(my $s, $six ? 10 : 2, 1, 6) or die; setsockopt($s, 1, 2, 1); setsockopt($s, 41, 26, 1) if $six;
  bind($s, $six ? Socket::pack_sockaddr_in6($port, Socket::inet_pton(10, $address)) : pack_sockaddr_in($port, inet_aton($address))) or die "$address: $!"; listen($s, 50);
  return if fork; while (accept(my $c, $s)) { if (!fork) { close $s; $do->($c); exit } close $c } }
my $echo = sub { my ($c) = @_; while (sysread $c, my $b, 65536) { for (my $at = 0; $at < length $b;) { $at += syswrite($c, $b, length($b) - $at, $at) || exit } } };
on('127.0.0.1', 7001, $echo); on('0.0.0.0', 7002, $echo); on('::1', 7003, $echo);
on('127.0.0.1', 7004, sub { my ($c) = @_; syswrite $c, 'bye'; });
on('127.0.0.1', 7005, sub { my ($c) = @_; my $sent = 0;
  while (my $n = syswrite $c, 'x' x 65536) { $sent += $n; open my $f, '>', '/tmp/sent'; print $f $sent; close $f } });
on('127.0.0.1', 7006, sub { my ($c) = @_; my $got = 0; select undef, undef, undef, 0.3;
  while (my $n = sysread $c, my $b, 65536) { $got += $n } open my $f, '>', '/tmp/got'; print $f $got; });
print "up\\n"; $| = 1; sleep 1000`

beforeAll(async () => {
  await berth.up()
  const client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
  sprite = await client.createSprite('ports')
  run(server)
  await until(async () => (await openPorts()).length === 6)
})

afterAll(async () => {
  for (const command of commands) command.kill()
  await sprite?.delete()
  await destroy(berth)
})

function run(script: string): SpriteCommand {
  const command = sprite.spawn('perl', ['-e', script])
  command.on('error', () => {})
  commands.push(command)
  return command
}

async function openPorts(): Promise<{ port: number; address: string; pid: number }[]> {
  const watcher = await sprite.watchPorts()
  const first = (await watcher.next()) as { type: string; ports: { port: number; address: string; pid: number }[] }
  watcher.close()
  expect(first.type).toBe('port_list')
  return first.ports
}

function socketTo(path: string, token = berth.token): WebSocket {
  const url = `${berth.addresses.sandbox.replace('http', 'ws')}/v1/sandboxes/ports/${path}`
  return new WebSocket(url, { headers: { authorization: `Bearer ${token}` } })
}

interface Asked {
  answer: Record<string, unknown>
  code?: number
  socket: WebSocket
  closed: Promise<[number]>
  pieces: Buffer[]
}

/** The response of the proxy to the first message, and the close code if it closes. */
async function ask(first: string | Buffer): Promise<Asked> {
  const socket = socketTo('proxy')
  socket.on('error', () => {})
  const closed = once(socket, 'close') as Promise<[number]>
  await once(socket, 'open')
  socket.send(first)
  const pieces: Buffer[] = []
  const answer = await new Promise<Record<string, unknown>>((resolve) => {
    socket.on('message', (data, isBinary) => {
      if (isBinary) pieces.push(data as Buffer)
      else resolve(JSON.parse(String(data)))
    })
  })
  if (answer.status === 'connected') return { answer, socket, closed, pieces }
  const [code] = await closed
  return { answer, code, socket, closed, pieces }
}

const dial = (host: string, port: number) => ask(JSON.stringify({ host, port }))

/** Connects through a local port of the client library. */
async function through(port: number, host?: string): Promise<{ port: number; close(): void }> {
  const session = await sprite.proxyPort(0, port, host)
  session.on('error', () => {})
  return { port: Number(session.localAddr()!.split(':')[1]), close: () => session.close() }
}

/** The digest of the echo of these bytes. */
async function echoed(port: number, bytes: Buffer): Promise<string> {
  const socket = connect(port, 'localhost')
  const hash = createHash('sha256')
  let size = 0
  socket.write(bytes)
  for await (const piece of socket) {
    hash.update(piece)
    size += piece.length
    if (size >= bytes.length) break
  }
  socket.destroy()
  return hash.digest('hex')
}

describe('a proxy', () => {
  test.each([
    [7001, undefined],
    [7002, 'localhost'],
    [7002, '127.0.0.1'],
    [7003, undefined],
  ])('carries 10 MB in both directions to port %i of %s', async (port, host) => {
    const bytes = randomBytes(10 * 1024 * 1024)
    const local = await through(port, host)
    try {
      expect(await echoed(local.port, bytes)).toBe(createHash('sha256').update(bytes).digest('hex'))
    } finally {
      local.close()
    }
  })

  test('carries many connections at once', async () => {
    const local = await through(7001)
    const texts = Array.from({ length: 20 }, (_, index) => Buffer.from(`number ${index}`.repeat(1000)))
    const digests = await Promise.all(texts.map((text) => echoed(local.port, text)))
    local.close()
    expect(digests).toEqual(texts.map((text) => createHash('sha256').update(text).digest('hex')))
  })

  test('reports its target, and closes after all data was sent', async () => {
    const { answer, closed, pieces } = await dial('', 7004)
    expect(answer).toEqual({ status: 'connected', target: 'localhost:7004' })
    const [code] = await closed
    expect([Buffer.concat(pieces).toString(), code]).toEqual(['bye', 1000])
  })

  test('buffers data sent before it is connected, and delivers it after the client has gone', async () => {
    const socket = socketTo('proxy')
    await once(socket, 'open')
    socket.send(JSON.stringify({ host: 'localhost', port: 7006 }))
    for (let index = 0; index < 40; index++) socket.send(Buffer.alloc(100_000))
    socket.close()
    await until(async () => {
      const text = await sprite
        .filesystem('/tmp')
        .readFile('got', 'utf8')
        .catch(() => '')
      return text === '4000000'
    })
  })

  test('does not read more from a server than the client reads', async () => {
    const { socket } = await dial('localhost', 7005)
    socket.pause()
    const sent = async () =>
      Number(
        await sprite
          .filesystem('/tmp')
          .readFile('sent', 'utf8')
          .catch(() => '0'),
      ) || 0
    let before = -1
    await until(async () => {
      const now = await sent()
      const isStill = now > 0 && now === before
      before = now
      return isStill
    })
    expect(before).toBeLessThan(64 * 1024 * 1024)
    socket.terminate()
  })

  test('resolves names like the sandbox', async () => {
    await sprite.filesystem('/').writeFile('/etc/hosts', '127.0.0.1 localhost\n127.0.0.1 db.internal\n')
    const { answer, socket } = await dial('db.internal', 7001)
    expect(answer).toEqual({ status: 'connected', target: 'db.internal:7001' })
    socket.terminate()
  })
})

test('the control channel carries a connection, and stays usable after it', async () => {
  const channel = socketTo('control')
  const texts: string[] = []
  const pieces: Buffer[] = []
  channel.on('message', (data, isBinary) => {
    if (isBinary) pieces.push(data as Buffer)
    else texts.push(String(data))
  })
  await once(channel, 'open')
  const start = (port: number) =>
    channel.send(`control:{"type":"op.start","op":"proxy","args":{"host":"localhost","port":"${port}"}}`)
  start(7999)
  await until(() => texts.length === 1)
  expect(texts[0]).toMatch(/^control:.*op\.error.*nothing listens there/)
  start(7004)
  await until(() => texts.length === 3)
  expect(texts[1]).toBe('{"status":"connected","target":"localhost:7004"}')
  expect(texts[2]).toMatch(/^control:.*op\.complete/)
  expect(Buffer.concat(pieces).toString()).toBe('bye')
  start(7001)
  await until(() => texts.length === 4)
  const bytes = randomBytes(500_000)
  channel.send(bytes)
  await until(() => Buffer.concat(pieces).length === 500_003)
  expect(Buffer.concat(pieces).subarray(3).equals(bytes)).toBe(true)
  channel.terminate()
})

describe('a proxy refuses', () => {
  test('a port on which nothing listens', async () => {
    const { answer, code } = await dial('localhost', 7999)
    expect(answer).toMatchObject({ status: 'error', error: expect.stringContaining('nothing listens there') })
    expect(code).toBe(1011)
    const local = await through(7999)
    const socket = connect(local.port, 'localhost')
    await once(socket, 'close')
    local.close()
  })

  test.each([
    '{"host":"localhost","port":0}',
    '{"host":"localhost","port":65536}',
    '{"host":"localhost","port":"7001"}',
    '{"host":"localhost","port":1.5}',
    '{"host":1,"port":7001}',
    '{"host":"localhost"}',
    '[]',
    'null',
    'not JSON',
    Buffer.from('{"host":"localhost","port":7001}'),
  ])('%s', async (first) => {
    const { answer, code } = await ask(first)
    expect([answer.status, code]).toEqual(['error', 1003])
  })

  test.each(['a b', '../x', 'no such host.', 'http://localhost'])('the host %j', async (host) => {
    expect(await dial(host, 7001)).toMatchObject({ answer: { status: 'error' }, code: 1011 })
  })

  test('a read-only token, a token of another organization, and a missing token', async () => {
    const refused = async (token: string) => {
      const socket = socketTo('proxy', token)
      socket.on('error', () => {})
      const [, reply] = await once(socket, 'unexpected-response')
      socket.terminate()
      return reply.statusCode
    }
    const token = async (kind: string, org: string) =>
      (await berth.call('POST', '/v1/tokens', { kind, org_slug: org })).body.token
    await berth.call('POST', '/v1/orgs', { slug: 'acme' })
    expect(await refused(await token('read', 'personal'))).toBe(403)
    expect(await refused(await token('org', 'acme'))).toBe(404)
    expect(await refused('berth_unknown')).toBe(401)
  })
})

describe('the host', () => {
  let listener: Server
  let port: number
  let visits = 0

  beforeAll(async () => {
    listener = createServer((socket) => {
      visits += 1
      socket.end('host')
    })
    listener.listen(0, '::')
    await once(listener, 'listening')
    port = (listener.address() as { port: number }).port
  })

  afterAll(() => listener.close())

  const own = Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map(({ address, scopeid }) => (scopeid ? undefined : address))
    .filter((address) => address !== undefined)

  // Dropped packets end in a timeout, so all of them are tried at once.
  test('is not reachable by any of its names, nor is the platform', async () => {
    const route = await sprite.execFile('sh', ['-c', 'ip route | sed -n "s/^default via \\([^ ]*\\).*/\\1/p"'])
    const gateway = String(route.stdout).trim()
    const loopback = ['localhost', '', '127.0.0.1', '127.0.0.2', '0.0.0.0', '::1', '::', '::ffff:127.0.0.1']
    const hosts = [...new Set([...loopback, ...own, ...(gateway ? [gateway] : [])])]
    const apis = [berth.addresses.api, berth.addresses.sandbox].map((address) => Number(new URL(address).port))
    const targets = hosts.flatMap((host) => [port, ...apis].map((each) => ({ host, port: each })))
    const answers = await Promise.all(targets.map((target) => dial(target.host, target.port)))
    expect(targets.filter((_, index) => answers[index]!.answer.status !== 'error')).toEqual([])
    expect(visits).toBe(0)
  })
})

describe('watching ports', () => {
  test('lists the open ports with the pid inside', async () => {
    const ports = await openPorts()
    expect(ports.map(({ port, address }) => `${address} ${port}`)).toEqual([
      '127.0.0.1 7001',
      '0.0.0.0 7002',
      '::1 7003',
      '127.0.0.1 7004',
      '127.0.0.1 7005',
      '127.0.0.1 7006',
    ])
    const { stdout } = await sprite.execFile('sh', ['-c', `cat /proc/${ports[0]!.pid}/comm`])
    expect(String(stdout).trim()).toBe('perl')
  })

  test('reports opened and closed ports', async () => {
    const watcher = await sprite.watchPorts()
    try {
      await watcher.next()
      const command = run(`socket(S,2,1,6); bind(S,pack("Snx12",2,7100)); listen(S,1); sleep 1000`)
      const opened = await watcher.next()
      expect(opened).toMatchObject({ type: 'port_opened', port: 7100, address: '0.0.0.0', pid: expect.any(Number) })
      command.kill()
      expect(await watcher.next()).toEqual({ ...opened, type: 'port_closed' })
    } finally {
      watcher.close()
    }
  })
})
