// A UDP service from a client's point of view: deployed from a file, at a dedicated address.
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { type Result, runCli } from '../../support/cli.ts'
import { destroy } from '../../support/client.ts'
import { startTalker, type Talker } from '../../support/datagram.ts'
import { busyboxImage, programLayer } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

/** A UDP server that responds with its name and the text, or only with the text if it is long. */
const echo = `
  my ($address) = map { /^(\\S+) fly-global-services$/ } do { open my $hosts, "<", "/etc/hosts"; <$hosts> };
  socket(my $socket, 2, 2, 17) or die; bind($socket, pack("SnC4x8", 2, 7000, split /[.]/, $address)) or die "bind: $!";
  while (defined(my $from = recv($socket, my $text, 65535, 0))) {
    send($socket, length($text) > 1000 ? $text : "$ENV{FLY_MACHINE_ID} $text", 0, $from);
  }`

/** Sends to port 7001 of an IPv6 address until a response arrives. */
const ask6 = `
  socket(my $socket, 10, 2, 17) or die; connect($socket, pack("SnNH32N", 10, 7001, 0, $ARGV[0], 0)) or die "connect: $!";
  $SIG{ALRM} = sub { send($socket, "hello", 0); alarm 1 };
  send($socket, "hello", 0); alarm 1;
  for (1 .. 20) { defined recv($socket, my $text, 65535, 0) or next; print $text; last }`

const berth = new Berth({ BERTH_EDGE_WORKERS: '2' })
const directory = mkdtempSync(join(tmpdir(), 'berth-datagram-'))
const talkers: Talker[] = []
let registry: Registry
let image: string

beforeAll(async () => {
  registry = await startRegistry()
  const { layers, config } = busyboxImage({ Cmd: ['perl', '-e', echo] })
  const spec = { layers: [...layers, programLayer('/usr/bin/perl')], config: config! }
  image = (await pushImage(registry, { repository: 'echo', ...spec })).reference
  await berth.up()
}, 120_000)

afterEach(() => {
  for (const each of talkers.splice(0)) each.close()
})

afterAll(async () => {
  rmSync(directory, { recursive: true })
  await registry?.close()
  await destroy(berth)
})

async function deploy(app: string, ...options: string[]): Promise<Result> {
  const file = `
app = "${app}"
image = "${image}"
[[services]]
  protocol = "udp"
  internal_port = 7000
  auto_start_machines = true
  [[services.ports]]
    port = 7001`
  writeFileSync(`${directory}/berth.toml`, file)
  const result = await runCli(berth, ['deploy', ...options], { cwd: directory })
  expect(result).toMatchObject({ code: 0, err: expect.not.stringContaining('error') })
  return result
}

const machinesOf = async (app: string): Promise<{ id: string }[]> => berth.ok('GET', `/v1/apps/${app}/machines`)

async function talk(address: string): Promise<Talker> {
  const talker = await startTalker(address, 7001)
  talkers.push(talker)
  return talker
}

test('deploying a UDP service gives the app a dedicated address, where requests reach and start its machines', async () => {
  const { err } = await deploy('echo')
  const address = /^App echo has the address (127\.\S+)\.$/m.exec(err)![1]!
  const ids = (await machinesOf('echo')).map(({ id }) => id)
  const clients = [await talk(address), await talk(address)]
  const answers = [await clients[0]!.ask('hello'), await clients[1]!.ask('hello')]
  expect(answers.map(({ from }) => from)).toEqual([`${address} 7001`, `${address} 7001`])
  expect(answers.map(({ text }) => text).sort()).toEqual(ids.map((id) => `${id} hello`).sort())

  const large = randomBytes(60_000)
  await until(() => {
    clients[0]!.say(large)
    return clients[0]!.heard.some(({ text }) => text === String(large))
  })

  for (const id of ids) await berth.ok('POST', `/v1/apps/echo/machines/${id}/stop`)
  for (const id of ids) await berth.ok('GET', `/v1/apps/echo/machines/${id}/wait?state=stopped&timeout=60`)
  const late = await talk(address)
  late.say('once')
  await until(() => late.heard.length > 0)
  expect(ids.map((id) => `${id} once`)).toContain(late.heard[0]!.text)
}, 180_000)

test('deploying a UDP service to an app with only a shared address warns that UDP needs a dedicated one', async () => {
  await berth.ok('POST', '/v1/apps', { app_name: 'sharing', org_slug: 'personal' })
  await berth.ok('POST', '/v1/apps/sharing/ip_assignments', { type: 'shared_v4' })
  const hint =
    'warning: UDP and plain TCP ports need an own address, which app sharing does not have; run "berth ips allocate-v4 -a sharing"'
  expect((await deploy('sharing', '--ha', 'false')).err).toContain(hint)
  expect((await deploy('sharing')).err).toContain(hint)
  await berth.ok('POST', '/v1/apps/sharing/ip_assignments', { type: 'v4' })
  expect((await deploy('sharing')).err).not.toContain('warning')
}, 180_000)

test.runIf(process.getuid?.() === 0)(
  'machines reach it at its address in their private network',
  async () => {
    await deploy('inner', '--ha', 'false', '--no-public-ips')
    const [machine] = await machinesOf('inner')
    const { ip } = await berth.ok('POST', '/v1/apps/inner/ip_assignments', { type: 'private_v6' })
    const command = ['perl', '-e', ask6, digitsOf(ip)]
    await until(async () => {
      const { stdout } = await berth.ok('POST', `/v1/apps/inner/machines/${machine!.id}/exec`, { command, timeout: 30 })
      return stdout === `${machine!.id} hello`
    })
  },
  180_000,
)

/** Expands an IPv6 address to 32 hexadecimal digits. */
function digitsOf(address: string): string {
  const [before = '', after] = address.split('::').map((part) => part.split(':').map((group) => group.padStart(4, '0')))
  if (!after) return (before as string[]).join('')
  const missing = 8 - before.length - after.length
  return [...before, ...Array(missing).fill('0000'), ...after].join('')
}
