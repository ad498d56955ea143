// The name server as machines use it: over UDP and TCP, from network namespaces that are connected like machines.
import { createSocket, type Socket as PacketSocket } from 'node:dgram'
import { once } from 'node:events'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../src/drivers/host/process.ts'
import { ensureResolverAddress } from '../../src/drivers/network/private.ts'
import { frameMessage, readFrame } from '../../src/edge/dns/frame.ts'
import { bindNameServer, type NameServer, startNameServer } from '../../src/edge/dns/server.ts'
import { machineAddress, resolverAddress } from '../../src/model/network.ts'
import { type BoxBench, openBoxBench } from '../support/box.ts'
import { useDatabase } from '../support/db.ts'
import { type PlainMachine, startPlainMachine } from '../support/private-network.ts'
import { until } from '../support/until.ts'

describe.runIf(isRoot())('the name server', () => {
  const database = useDatabase()
  let bench: BoxBench
  let upstream: Upstream
  let names: NameServer
  const machines: PlainMachine[] = []
  let networks: number[]

  beforeAll(async () => {
    bench = await openBoxBench()
    upstream = await startUpstream()
    const { db } = database
    await db.query(`insert into org (id, slug, name) values ('acme', 'acme', 'acme')`)
    await db.query(`insert into app (id, org_id, name, network, state, enable_subdomains)
      values ('a1', 'acme', 'web', 'default', 'active', false), ('a2', 'acme', 'apart', 'apart', 'active', false)`)
    const { rows } = await db.query<{ number: number }>(
      `insert into network (org_id, name) values ('acme', 'default'), ('acme', 'apart') returning number`,
    )
    networks = rows.map((row) => row.number)
    for (const [slot, app, network] of [
      [1, 'a1', networks[0]],
      [2, 'a1', networks[0]],
      [3, 'a2', networks[1]],
    ]) {
      await db.query(
        `insert into machine (id, app_id, name, state, region, instance_id, config, network_number, wanted, slot)
         values ($1, $2, $1, 'started', 'local', 'v', '{"image": "none"}', $3, true, $4)`,
        [`m${slot}`, app, network, slot],
      )
    }
    machines.push(await startPlainMachine(bench.home, networks[0]!, 1))
    machines.push(await startPlainMachine(bench.home, networks[0]!, 2))
    machines.push(await startPlainMachine(bench.home, networks[1]!, 3))
    await ensureResolverAddress(bench.home.number)
    names = await startNameServer({ homeNumber: bench.home.number, upstreams: ['127.0.0.1#1', upstream.resolver] })
    await names.reload(db, null)
  })

  afterAll(async () => {
    names?.close()
    for (const machine of machines) await machine.stop()
    upstream?.close()
    await bench?.remove()
  })

  test('resolves names for getaddrinfo', async () => {
    const out = await resolve(machines[0]!, 'web.internal')
    expect(out).toContain(machineAddress(bench.home.number, networks[0]!, 2))
    expect(out).toContain(machineAddress(bench.home.number, networks[0]!, 1))
    expect(await resolve(machines[2]!, 'web.internal')).toBe('')
    expect(await resolve(machines[2]!, 'apart.internal')).toContain(machineAddress(bench.home.number, networks[1]!, 3))
  })

  test('answers over TCP', async () => {
    const message = question('_apps.internal', 16)
    expect(await ask(machines[0]!, message, 'tcp')).toContain('\x03web')
    expect(await ask(machines[2]!, message, 'tcp')).toContain('\x05apart')
  })

  test('forwards other names to the next resolver that answers', async () => {
    expect(await ask(machines[0]!, question('example.com', 1), 'udp')).toContain('answered upstream')
    expect(await ask(machines[0]!, question('example.com', 1), 'tcp')).toContain('answered upstream')
    expect(upstream.asked.every((message) => message.includes('example'))).toBe(true)
  })

  test('shares its port with other processes', async () => {
    const other = await startNameServer(
      { homeNumber: bench.home.number, upstreams: [] },
      bindNameServer(resolverAddress(bench.home.number)),
    )
    await other.reload(database.db, null)
    const asking = Array.from({ length: 20 }, () => ask(machines[0]!, question('_apps.internal', 16), 'udp'))
    for (const answer of await Promise.all(asking)) expect(answer).toContain('\x03web')
    other.close()
    expect(await ask(machines[0]!, question('_apps.internal', 16), 'udp')).toContain('\x03web')
  })

  test('follows the state of machines', async () => {
    await database.db.query(`update machine set state = 'stopped' where id = 'm2'`)
    await names.reload(database.db, ['a1'])
    expect(await resolve(machines[0]!, 'web.internal')).not.toContain(
      machineAddress(bench.home.number, networks[0]!, 2),
    )
    await database.db.query(`update machine set state = 'started' where id = 'm2'`)
    await names.reload(database.db, ['a1'])
    expect(await resolve(machines[0]!, 'web.internal')).toContain(machineAddress(bench.home.number, networks[0]!, 2))
  })

  test('answers while another machine floods it', async () => {
    const flood = await machines[1]!.start(floodScript, resolverAddress(bench.home.number))
    for (let round = 0; round < 20; round++) {
      expect(await ask(machines[0]!, question('_apps.internal', 16), 'udp')).toContain('\x03web')
    }
    expect(flood.exitCode).toBeNull()
    flood.kill('SIGKILL')
    await once(flood, 'exit')
    await until(async () => (await ask(machines[1]!, question('_apps.internal', 16), 'udp')).includes('\x03web'))
  })

  /** Returns the response as text. */
  async function ask(machine: PlainMachine, message: Buffer, over: 'udp' | 'tcp'): Promise<string> {
    const bytes = over === 'tcp' ? frameMessage(message) : message
    const out = await machine.run(
      'perl',
      '-e',
      askScript,
      resolverAddress(bench.home.number),
      over,
      bytes.toString('hex'),
    )
    return Buffer.from(out, 'hex').toString('latin1')
  }

  /** Resolves a name inside a mount namespace whose resolv.conf names the server under test. */
  async function resolve(machine: PlainMachine, name: string): Promise<string> {
    const script = `mount --bind "$1" /etc/resolv.conf && exec getent ahostsv6 "$2"`
    const file = `${bench.home.path}/resolv.conf`
    await machine.run('sh', '-c', `echo nameserver ${resolverAddress(bench.home.number)} > ${file}`)
    return machine.run('unshare', '-m', 'sh', '-c', script, 'sh', file, name)
  }
})

const connectScript = `
  use strict; use Socket qw(:DEFAULT inet_pton);
  my ($address, @rest) = @ARGV;
  sub reach { socket(my $s, AF_INET6, $_[0], 0) or die; connect($s, sockaddr_in6(53, inet_pton(AF_INET6, $address))) or die "connect: $!"; $s }
`

const askScript = `${connectScript}
  alarm 20;
  my ($over, $hex) = @rest;
  my $s = reach($over eq 'tcp' ? SOCK_STREAM : SOCK_DGRAM);
  my $answer = '';
  # A lost packet is sent again, as resolvers do.
  until (length $answer) {
    syswrite $s, pack 'H*', $hex;
    vec(my $ready = '', fileno $s, 1) = 1;
    select($ready, undef, undef, $over eq 'tcp' ? undef : 1) > 0 and sysread $s, $answer, 65536;
  }
  print unpack 'H*', $answer;
`

/** Sends random bytes as fast as possible until it is killed. Prints a word once it has begun. */
const floodScript = `${connectScript}
  my $s = reach(SOCK_DGRAM);
  my ($sent, $said) = (0, 0);
  my $noise = join '', map { chr rand 256 } 1 .. 400;
  $| = 1;
  for (;;) {
    for (1 .. 1000) { $sent++ if syswrite $s, substr($noise, rand 300, rand 100) }
    $said ||= print "flooding" if $sent;
  }
`

function question(name: string, type: number): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)]))
  return Buffer.concat([Buffer.from('123401000001000000000000', 'hex'), ...labels, Buffer.from([0, 0, type, 0, 1])])
}

interface Upstream {
  /** The address of the server, as `address#port`. */
  resolver: string
  asked: string[]
  close(): void
}

/** A resolver that answers with the question and some text. */
async function startUpstream(): Promise<Upstream> {
  const asked: string[] = []
  const answerTo = (message: Buffer) => {
    asked.push(message.toString('latin1'))
    const answer = Buffer.concat([message, Buffer.from('answered upstream')])
    answer[2]! |= 0x80
    return answer
  }
  const streams: Server = createServer((socket) => {
    socket.on('error', () => undefined)
    socket.on('data', (data: Buffer) => socket.end(frameMessage(answerTo(readFrame(data)!))))
  })
  await new Promise<void>((resolve) => streams.listen(0, '127.0.0.1', resolve))
  const { port } = streams.address() as AddressInfo
  const packets: PacketSocket = createSocket('udp4')
  packets.on('message', (message, from) => packets.send(answerTo(message), from.port, from.address))
  await new Promise<void>((resolve) => packets.bind(port, '127.0.0.1', resolve))
  return {
    resolver: `127.0.0.1#${port}`,
    asked,
    close() {
      streams.close()
      packets.close()
    },
  }
}
