// Private networks between machines of real images.
import { execFile, execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { request } from 'node:http'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

interface Machine {
  app: string
  id: string
  address: string
}

const run = promisify(execFile)
const berth = new Berth()
let registry: Registry
let image: string
let machines: Record<'front' | 'back' | 'apart' | 'foreign', Machine>

describe.runIf(process.getuid?.() === 0)('machines in private networks', () => {
  beforeAll(async () => {
    registry = await startRegistry()
    const serve = 'mkdir -p /www && echo $FLY_APP_NAME > /www/word && exec httpd -f -p 8080 -h /www'
    image = (await pushImage(registry, { repository: 'word', ...busyboxImage({ Cmd: ['sh', '-c', serve] }) })).reference
    await berth.up()
    await berth.call('POST', '/v1/orgs', { slug: 'abroad' })
    machines = {
      front: await start('front'),
      back: await start('back'),
      apart: await start('apart', { network: 'island' }),
      foreign: await start('foreign', { org_slug: 'abroad' }),
    }
  }, 180_000)

  afterAll(async () => {
    await berth.destroy()
    await registry?.close()
  })

  test('resolve each other by name and reach each other', async () => {
    const { front, back } = machines
    expect(await lookUp(front, 'back.internal')).toContain(back.address)
    expect(await lookUp(back, `${front.id}.vm.front.internal`)).toContain(front.address)
    expect(await reach(front, back.address)).toBe('back\n')
    expect(await reach(back, front.address)).toBe('front\n')
    expect(await exec(front, 'cat', '/etc/hosts')).toContain(`${front.address} fly-local-6pn`)
  })

  test('of other networks and organizations cannot be resolved or reached', async () => {
    const { front, apart, foreign } = machines
    for (const stranger of [apart, foreign]) {
      expect(await lookUp(front, `${stranger.app}.internal`)).not.toContain('fdaa:')
      expect(await lookUp(stranger, 'front.internal')).not.toContain('fdaa:')
      expect(await tryReach(front, stranger.address)).toBe('')
      expect(await tryReach(stranger, front.address)).toBe('')
    }
  })

  test('cannot be reached over their other interface either', async () => {
    const { front, back, foreign } = machines
    for (const machine of [back, foreign]) {
      const address = await ownAddress(machine)
      expect(await reach(machine, address)).toBe(`${machine.app}\n`)
      expect(await tryReach(front, address)).toBe('')
    }
  })

  test('reach the services of an app at its address in their network only', async () => {
    const { front, apart, foreign } = machines
    const { body } = await berth.call('POST', '/v1/apps/apart/ip_assignments', {
      type: 'private_v6',
      network: 'default',
    })
    await until(async () => (await lookUp(front, 'apart.flycast')).includes(body.ip))
    await until(async () => (await tryReach(front, body.ip)) === 'apart\n')
    for (const stranger of [apart, foreign]) {
      expect(await lookUp(stranger, 'apart.flycast')).not.toContain('fdaa:')
      expect(await tryReach(stranger, body.ip)).toBe('')
    }
  })

  test('follow the network policies of their apps, and the platform still reaches them', async () => {
    const { front, back, apart } = machines
    const { ips } = await berth.ok('GET', '/v1/apps/apart/ip_assignments')
    const policy = (direction: string, ...ports: number[]) => ({
      name: direction,
      selector: { all: true },
      rules: [{ action: 'allow', direction, ports: ports.map((port) => ({ protocol: 'tcp', port })) }],
    })
    const closed = await berth.ok('POST', '/v1/apps/back/network_policies', policy('ingress', 9090))
    expect(await tryReach(front, back.address)).toBe('')
    await berth.ok('POST', '/v1/apps/back/network_policies', { ...policy('ingress', 8080), id: closed.id })
    expect(await reach(front, back.address)).toBe('back\n')
    const [out, inside] = [
      await berth.ok('POST', '/v1/apps/front/network_policies', policy('egress', 443)),
      await berth.ok('POST', '/v1/apps/apart/network_policies', policy('ingress')),
    ]
    expect(await tryReach(front, back.address)).toBe('')
    expect(await reach(back, front.address)).toBe('front\n')
    // The edge reaches both under any policy.
    expect(await lookUp(front, 'apart.flycast')).toContain(ips[0].ip)
    expect(await reach(front, ips[0].ip)).toBe('apart\n')
    await restart(front)
    expect(await tryReach(front, back.address)).toBe('')
    expect(await reach(front, ips[0].ip)).toBe('apart\n')
    for (const [{ app }, { id }] of [
      [front, out],
      [apart, inside],
      [back, closed],
    ] as const)
      await berth.ok('DELETE', `/v1/apps/${app}/network_policies/${id}`)
    expect(await reach(front, back.address)).toBe('back\n')
  })

  test('reach the API by its name, with an ordinary token', async () => {
    const { front, apart, foreign } = machines
    const ask = (machine: Machine, path: string, ...headers: string[]) =>
      exec(
        machine,
        'wget',
        '-q',
        '-O',
        '-',
        ...headers.flatMap((one) => ['--header', one]),
        `http://_api.internal:4280${path}`,
      )
    const authorization = `Authorization: Bearer ${berth.token}`
    for (const machine of [front, apart, foreign]) {
      expect(JSON.parse(await ask(machine, '/v1/apps/front', authorization))).toMatchObject({ name: 'front' })
      expect(await ask(machine, '/v1/apps/front')).toContain('401')
      // From the host's loopback these routes would need no token.
      expect(await ask(machine, '/metrics')).toContain('401')
      expect(await ask(machine, '/metrics', authorization)).toContain('berth_')
    }
    expect(await lookUp(front, '_api.internal')).toContain('::3')
    // The address identifies the machine, so this needs no token.
    const request = ['wget', '-q', '-O', '-', '--post-data', '{"aud":"x"}', 'http://_api.internal:4280/v1/tokens/oidc']
    const claims = (await exec(apart, ...request)).split('.')[1]!
    expect(JSON.parse(Buffer.from(claims, 'base64url').toString())).toMatchObject({
      iss: berth.addresses.api,
      aud: 'x',
      sub: expect.stringMatching(/^personal:apart:/),
      machine_id: apart.id,
    })
    // Requests about the machine itself need no token, at the socket either.
    const itself = `/v1/apps/apart/machines/${apart.id}`
    expect(JSON.parse(await ask(apart, itself))).toMatchObject({ id: apart.id, state: 'started' })
    expect(await ask(front, itself)).toContain('401')
    expect(await askAt(apart, itself)).toMatchObject({ status: 200, body: { id: apart.id } })
    expect((await askAt(front, itself)).status).toBe(401)
    expect(await exec(front, 'rm', '/.fly/api')).toContain('Read-only')
  })

  test('can be resolved only while they run', async () => {
    const { front, back } = machines
    await berth.call('POST', `/v1/apps/back/machines/${back.id}/stop`)
    await until(async () => !(await lookUp(front, 'back.internal')).includes(back.address))
    await until(async () => (await berth.call('GET', `/v1/apps/back/machines/${back.id}`)).body.state === 'stopped')
    expect((await berth.call('POST', `/v1/apps/back/machines/${back.id}/start`)).status).toBe(200)
    await until(async () => (await lookUp(front, 'back.internal')).includes(back.address))
    await until(async () => (await tryReach(front, back.address)) === 'back\n')
  })

  test('keep names and networks while the control plane is down', async () => {
    const { front, back } = machines
    await Promise.all(berth.children.map((child) => end(child)))
    const inside = ['-t', hostPid(front)!, '-n', '-m', '/bin/busybox', 'nslookup', '-type=AAAA', 'back.internal']
    expect(execFileSync('nsenter', inside, { encoding: 'utf8' })).toContain(back.address)
    expect(await reach(front, back.address)).toBe('back\n')
    const request = ['wget', '-q', '-O', '-', 'http://_api.internal:4280/healthz']
    const refused = await run('nsenter', [...inside.slice(0, 5), ...request]).catch(
      (error: { stderr: string }) => error,
    )
    expect(refused.stderr).toContain('503')
    await berth.up()
  })

  test('leave no network behind', async () => {
    const number = readFileSync(`${berth.home}/number`, 'utf8').trim()
    const ours = () => readdirSync('/sys/class/net').filter((name) => new RegExp(`^b[mn]${number}-`).test(name))
    expect(ours()).not.toEqual([])
    const routes = () => execFileSync('ip', ['route', 'show', 'type', 'unreachable'], { encoding: 'utf8' })
    const ownRange = new RegExp(
      `^unreachable 100\\.${64 + (Number(number) >> 4)}\\.${(Number(number) & 15) * 16}\\.0/20 `,
      'm',
    )
    expect(routes()).toMatch(ownRange)
    for (const { app } of Object.values(machines)) await berth.call('DELETE', `/v1/apps/${app}?force=true`)
    await until(() => ours().length === 0, 60)
    await Promise.all(berth.children.map((child) => end(child)))
    await berth.cli('down')
    expect(routes()).not.toMatch(ownRange)
    const listed = execFileSync('nft', ['list', 'tables'], { encoding: 'utf8' })
    expect(execFileSync('ip', ['-6', 'addr', 'show', 'dev', 'lo'], { encoding: 'utf8' })).not.toMatch(ownPrefix(number))
    expect(listed).not.toMatch(new RegExp(`berth-(private-)?${number}$`, 'm'))
  })
})

/** Sends a request to the socket inside the machine. */
function askAt(machine: Machine, path: string): Promise<{ status: number; body: object }> {
  return new Promise((resolve, reject) => {
    request({ socketPath: `/proc/${hostPid(machine)}/root/.fly/api`, path }, async (answer) => {
      const chunks: Buffer[] = []
      for await (const chunk of answer) chunks.push(chunk)
      resolve({ status: answer.statusCode!, body: JSON.parse(Buffer.concat(chunks).toString()) })
    })
      .on('error', reject)
      .end()
  })
}

async function start(app: string, given: object = {}): Promise<Machine> {
  const made = await berth.call('POST', '/v1/apps', { app_name: app, org_slug: 'personal', ...given })
  expect(made.status).toBe(201)
  const services = [{ protocol: 'tcp', internal_port: 8080, ports: [{ port: 8080, handlers: ['http'] }] }]
  const config = { image, services, guest: { cpus: 1, memory_mb: 256 } }
  const { body } = await berth.call('POST', `/v1/apps/${app}/machines`, { config })
  const machine = { app, id: body.id, address: body.private_ip }
  await until(async () => {
    const { body: shown } = await berth.call('GET', `/v1/apps/${app}/machines/${machine.id}`)
    if (/failed|destroy/.test(shown.state)) throw new Error(JSON.stringify(shown))
    return shown.state === 'started'
  }, 60)
  await until(
    async () => hostPid(machine) !== undefined && (await tryReach(machine, machine.address)) === `${app}\n`,
    60,
  )
  return machine
}

async function restart(machine: Machine): Promise<void> {
  const before = hostPid(machine)
  await berth.ok('POST', `/v1/apps/${machine.app}/machines/${machine.id}/restart`)
  await until(async () => {
    const pid = hostPid(machine)
    return pid !== undefined && pid !== before && (await tryReach(machine, machine.address)) !== ''
  }, 60)
}

async function exec({ app, id }: Machine, ...command: string[]): Promise<string> {
  const { body } = await berth.call('POST', `/v1/apps/${app}/machines/${id}/exec`, { command, timeout: 30 })
  return `${body.stdout}${body.stderr}`
}

/** The prefix of all private addresses of a home. */
function ownPrefix(number: string): RegExp {
  return number === '0' ? /fdaa::/ : new RegExp(`fdaa:${Number(number).toString(16)}[0-9a-f]{2}:`)
}

/** Drops the lines about the resolver itself. */
async function lookUp(machine: Machine, name: string): Promise<string> {
  const out = await exec(machine, 'nslookup', '-type=AAAA', name)
  return out.slice(out.indexOf('\n\n'))
}

const client = `
  use strict; use Socket qw(:DEFAULT inet_pton);
  my ($address, $seconds) = @ARGV;
  alarm $seconds;
  my $v6 = $address =~ /:/;
  socket(my $s, $v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 6) or die;
  connect($s, $v6 ? sockaddr_in6(8080, inet_pton(AF_INET6, $address)) : sockaddr_in(8080, inet_aton($address))) or exit;
  syswrite $s, "GET /word HTTP/1.0\\r\\n\\r\\n";
  my $answer = join '', <$s>;
  print $answer =~ s/.*\\r\\n\\r\\n//sr;
`

/** Fetches with a program of the host in the network namespace of a machine. */
function reach(machine: Machine, address: string, seconds = 20): Promise<string> {
  const argv = ['-t', hostPid(machine)!, '-n', 'perl', '-e', client, address, String(seconds)]
  return new Promise((resolve) => {
    execFile('nsenter', argv, (_error, stdout) => resolve(stdout))
  })
}

/** Fetches with a short timeout, for addresses that must not be reachable. */
function tryReach(machine: Machine, address: string): Promise<string> {
  return reach(machine, address, 1)
}

async function ownAddress(machine: Machine): Promise<string> {
  const routes = await exec(machine, 'cat', '/proc/net/fib_trie')
  return /(100\.\d+\.\d+\.\d+)\n\s+\/32 host LOCAL/.exec(routes)![1]!
}

/** Returns the pid of its program, which is found by its environment. */
function hostPid({ id }: Machine): string | undefined {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.find((pid) => {
    try {
      const isProgram = readFileSync(`/proc/${pid}/comm`, 'utf8') === 'httpd\n'
      return isProgram && readFileSync(`/proc/${pid}/environ`, 'utf8').includes(`FLY_MACHINE_ID=${id}\0`)
    } catch {
      return false // it has ended
    }
  })
}
