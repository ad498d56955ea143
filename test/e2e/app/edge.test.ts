import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { Agent, type IncomingMessage, request } from 'node:http'
import { SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end, kill } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { until } from '../../support/until.ts'

const berth = new Berth({ BERTH_EDGE_WORKERS: '2' })

// Starts up for half a second, then serves each connection from a forked process that returns the request.
const server = `
use IO::Socket::INET; $| = 1; $SIG{CHLD} = 'IGNORE'; select(undef, undef, undef, 0.5);
my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ENV{PORT}, Listen => 128, ReuseAddr => 1) or die $!;
while (1) {
  my $c = $l->accept or next;
  if (fork) { close $c; next }
  while (1) {
    my $head = ''; while (my $line = <$c>) { last if $line eq "\\r\\n"; $head .= $line }
    exit unless $head;
    my $body = (-e '/tmp/ready' ? 'ready ' : '') . "$ENV{NAME} $head";
    print $c "HTTP/1.1 200 OK\\r\\nContent-Length: " . length($body) . "\\r\\n\\r\\n$body"; $c->flush;
  }
}`

interface Reply {
  status: number
  body: string
}

/** Sends one request; rejects if there is no response. */
async function ask(host: string, headers: Record<string, string> = {}, agent: Agent | false = false): Promise<Reply> {
  const { hostname, port } = new URL(edgeUrl)
  const call = request({ host: hostname, port, agent, headers: { host, ...headers } }).end()
  const [reply] = (await once(call, 'response')) as [IncomingMessage]
  let body = ''
  for await (const chunk of reply) body += chunk
  return { status: reply.statusCode!, body }
}

/** Waits until the edge knows the latest state of the sandbox. */
async function askWhen(name: string, isTold: (reply: Reply) => boolean): Promise<Reply> {
  let reply: Reply | undefined
  await until(async () => {
    reply = await ask(host(name)).catch(() => undefined)
    return reply !== undefined && isTold(reply)
  })
  return reply!
}

const isPublic = ({ status }: Reply) => status !== 401 && status !== 404
const isWanted = ({ body }: Reply) => !body.includes('service_stopped')

let edgeUrl: string
let client: SpritesClient
const host = (name: string) => `${name}.sandbox.localhost`

async function sandboxWithService(name: string, auth: 'public' | 'sprite', definition: object = {}): Promise<void> {
  const sprite = await client.createSprite(name)
  await sprite.updateURLSettings({ auth })
  await call('PUT', `/v1/sandboxes/${name}/services/web?duration=10ms`, {
    cmd: 'perl',
    args: ['-e', server],
    env: { PORT: '8080', NAME: name },
    http_port: 8080,
    ...definition,
  })
}

async function call(method: string, path: string, body?: object): Promise<Reply> {
  const reply = await fetch(`${berth.addresses.sandbox}${path}`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  return { status: reply.status, body: await reply.text() }
}

/** Sends requests continuously, over kept and new connections, until it is stopped. */
function startTraffic(name: string) {
  const agent = new Agent({ keepAlive: true, maxSockets: 4 })
  const failures: string[] = []
  let answered = 0
  let stopping = false
  const run = async (each: Agent | false) => {
    while (!stopping) {
      const reply = await ask(host(name), {}, each).catch((error) => ({ status: 0, body: String(error) }))
      if (reply.status === 200) answered += 1
      else failures.push(`${reply.status} ${reply.body}`)
    }
  }
  const runs = [run(agent), run(agent), run(false)]
  return {
    count: () => answered,
    async stop() {
      stopping = true
      await Promise.all(runs)
      agent.destroy()
      return { answered, failures }
    },
  }
}

function edgePids(): { primary: number | undefined; workers: number[] } {
  const found = JSON.parse(
    execFileSync(new URL('../../../berth', import.meta.url).pathname, ['status', '--json'], {
      env: berth.environment,
      encoding: 'utf8',
    }),
  )
  const primary: number | undefined = found.services.find((service: { name: string }) => service.name === 'edge')?.pid
  const children = readdirSync('/proc')
    .filter((entry) => primary !== undefined && /^\d+$/.test(entry))
    .filter((pid) => parentOf(pid) === primary)
  return { primary, workers: children.map(Number) }
}

function parentOf(pid: string): number | undefined {
  try {
    return Number(/^PPid:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  } catch {
    return undefined
  }
}

beforeAll(async () => {
  await berth.up()
  edgeUrl = berth.addresses.edge
  client = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox })
  await sandboxWithService('open', 'public')
  await sandboxWithService('closed', 'sprite')
})

afterAll(async () => {
  await destroy(berth)
})

describe('the URL of a sandbox', () => {
  test('is in the API response and reaches the service as soon as it listens', async () => {
    const sprite = await client.getSprite('open')
    expect(sprite.url).toBe(`http://open.sandbox.localhost:${new URL(edgeUrl).port}/`)
    const reply = await askWhen('open', isPublic)
    expect(reply.status).toBe(200)
    expect(reply.body).toMatch(/^open GET \/ HTTP\/1.1\r\nHost: open.sandbox.localhost/)
  })

  test('needs a token, which is not forwarded to the service', async () => {
    expect((await askWhen('closed', ({ status }) => status !== 404)).status).toBe(401)
    const reply = await ask(host('closed'), { authorization: `Bearer ${berth.token}` })
    expect(reply.status).toBe(200)
    expect(reply.body).toMatch(/^closed GET/)
    expect(reply.body).not.toContain(berth.token)
    await (await client.getSprite('closed')).updateURLSettings({ auth: 'public' })
    expect((await askWhen('closed', isPublic)).status).toBe(200)
  })

  test('waits for a crashed service, and reports a stopped one', async () => {
    const path = '/v1/sandboxes/open/services'
    expect((await call('POST', `${path}/signal`, { name: 'web', signal: 'KILL' })).status).toBe(204)
    expect((await ask(host('open'))).status).toBe(200)
    await call('POST', `${path}/web/stop`)
    const stopped = await ask(host('open'))
    expect([stopped.status, JSON.parse(stopped.body).error]).toEqual([503, 'service_stopped'])
    await call('POST', `${path}/web/start?duration=10ms`)
    expect((await askWhen('open', isWanted)).status).toBe(200)
  })

  test('restarts a failed service before its backoff ends', async () => {
    const script = `test -e ready || exit 3; exec perl -e '${server.replaceAll("'", `'"'"'`)}'`
    await sandboxWithService('late', 'public', { cmd: 'sh', args: ['-c', script] })
    const path = '/v1/sandboxes/late'
    let nextAt = 0
    await until(async () => {
      const { state } = JSON.parse((await call('GET', `${path}/services/web`)).body)
      nextAt = state.restart_count >= 5 ? Date.parse(state.next_restart_at) : 0
      return nextAt > Date.now()
    })
    await call('PUT', `${path}/fs/write?path=ready&workingDir=/home/sprite`)
    expect((await askWhen('late', isPublic)).status).toBe(200)
    expect(Date.now()).toBeLessThan(nextAt)
  })

  test('starts a sandbox that has never run', async () => {
    await (await client.createSprite('empty')).updateURLSettings({ auth: 'public' })
    const reply = await askWhen('empty', isPublic)
    expect([reply.status, JSON.parse(reply.body).error]).toEqual([502, 'bad_gateway'])
    expect((await client.getSprite('empty')).status).toBe('running')
  })

  test('waits for the health check of the service', async () => {
    const late = 'test -e /tmp/ready'
    await sandboxWithService('checked', 'public', { health: { command: ['sh', '-c', late], interval: '100ms' } })
    const replies = [1, 2, 3].map(() => askWhen('checked', isPublic))
    const state = async () => JSON.parse((await call('GET', '/v1/sandboxes/checked/services/web')).body).state
    await until(async () => (await state()).pid > 0)
    const checked = client.sprite('checked')
    await until(
      async () => (await checked.execFile('sh', ['-c', 'grep -c " 0A " /proc/net/tcp; true'])).stdout !== '0\n',
    )
    expect((await state()).status).toBe('starting')
    await checked.execFile('touch', ['/tmp/ready'])
    for (const reply of await Promise.all(replies)) expect(reply.body).toMatch(/^ready checked GET/)

    // The restarted service has to pass its own check.
    await checked.execFile('rm', ['/tmp/ready'])
    await call('POST', '/v1/sandboxes/checked/services/web/restart?duration=10ms')
    const later = ask(host('checked'))
    await until(async () => (await state()).status === 'starting' && (await state()).pid > 0)
    await checked.execFile('touch', ['/tmp/ready'])
    expect((await later).body).toMatch(/^ready checked GET/)
  })

  test('stops working when the sandbox is deleted', async () => {
    await (await client.getSprite('empty')).delete()
    await askWhen('empty', ({ status }) => status === 404)
  })
})

describe('traffic', () => {
  test('continues without a failed request when the control plane is killed and restarted', async () => {
    const traffic = startTraffic('open')
    await until(() => traffic.count() > 50)
    await end(berth.children.at(-1)!)
    const before = traffic.count()
    await until(() => traffic.count() > before + 50)
    await berth.up()
    const after = traffic.count()
    await until(() => traffic.count() > after + 50)
    expect((await traffic.stop()).failures).toEqual([])
    expect(berth.addresses.edge).toBe(edgeUrl)
  })

  test('continues without a failed request when the settings of the edge change', async () => {
    const { primary, workers } = edgePids()
    expect(workers).toHaveLength(2)
    const traffic = startTraffic('open')
    await until(() => traffic.count() > 50)
    await end(berth.children.at(-1)!, 'SIGTERM')
    berth.environment.BERTH_EDGE_WORKERS = '1'
    await berth.up()
    await until(() => edgePids().workers.length === 1, 80)
    const before = traffic.count()
    await until(() => traffic.count() > before + 50)
    expect((await traffic.stop()).failures).toEqual([])
    expect(edgePids().primary).toBe(primary)
    expect(workers).not.toContain(edgePids().workers[0])
  }, 120_000)

  test('recovers when a worker or the whole edge is killed', async () => {
    const { primary, workers } = edgePids()
    // The old workers may still answer for a moment, so the test waits for the new edge first.
    const isOther = ({ primary: now, workers: others }: ReturnType<typeof edgePids>) =>
      others.length === 1 && others[0] !== workers[0] && now !== undefined
    kill(workers[0]!)
    await until(() => isOther(edgePids()))
    await askWhen('open', ({ status }) => status === 200)
    const traffic = startTraffic('open')
    await until(() => traffic.count() > 50)
    kill(primary!)
    await until(() => isOther(edgePids()) && edgePids().primary !== primary)
    const after = traffic.count()
    await until(() => traffic.count() > after + 50)
    expect((await traffic.stop()).failures).toEqual([])
    expect((await ask(`127.0.0.1:${new URL(edgeUrl).port}`)).status).toBe(404)
  })

  test('works at the same address after everything was down', async () => {
    await end(berth.children.at(-1)!, 'SIGTERM')
    await berth.cli('down')
    await expect(ask(host('open'))).rejects.toThrow('ECONNREFUSED')
    await berth.up()
    expect(berth.addresses.edge).toBe(edgeUrl)
    await askWhen('open', ({ status }) => status === 200)
  })
})
