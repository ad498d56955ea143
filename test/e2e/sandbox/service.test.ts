import { readFileSync } from 'node:fs'
import { SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy, processesOf } from '../../support/client.ts'
import { until } from '../../support/until.ts'

interface Event {
  type: string
  timestamp: number
  data?: string
  exit_code?: number
  log_files?: Record<string, string>
}

let berth: Berth
let control: Awaited<ReturnType<Berth['up']>>
const box = 'box'

beforeAll(async () => {
  berth = new Berth({ BERTH_EDGE_LISTEN: '127.0.0.1:0' })
  control = await berth.up()
  const made = await call('POST', '/v1/sandboxes', { name: box, environment: { FROM_SANDBOX: 'yes' } })
  expect(made.status).toBe(201)
})

afterAll(() => destroy(berth))

async function call(method: string, path: string, body?: object) {
  const reply = await fetch(`${berth.addresses.sandbox}${path}`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await reply.text()
  const type = reply.headers.get('content-type') ?? ''
  const events: Event[] = type.includes('ndjson')
    ? text
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line))
    : []
  const parsed = type.startsWith('application/json') && text ? JSON.parse(text) : text
  return { status: reply.status, body: parsed, events, lines: text.split('\n') }
}

const servicePath = (name: string) => `/v1/sandboxes/${box}/services/${name}`
const put = (name: string, body: object, duration = '50ms') =>
  call('PUT', `${servicePath(name)}?duration=${duration}`, body)
const act = (name: string, verb: string, query = 'duration=50ms') =>
  call('POST', `${servicePath(name)}/${verb}?${query}`)
const get = async (name: string) => (await call('GET', servicePath(name))).body
const state = async (name: string) => (await get(name)).state
const shell = (script: string) => ({ cmd: 'sh', args: ['-c', script] })
const types = (events: Event[]) => events.map(({ type }) => type)
const said = (events: Event[], type: string) =>
  events
    .filter((event) => event.type === type)
    .map(({ data }) => data)
    .join('')

/** Collects events until the condition holds, and then disconnects. */
async function hear(
  method: string,
  path: string,
  body: object | undefined,
  isEnough: (events: Event[]) => boolean | Promise<boolean>,
): Promise<Event[]> {
  const gone = new AbortController()
  const reply = await fetch(`${berth.addresses.sandbox}${path}?duration=60s`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    signal: gone.signal,
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const events: Event[] = []
  const decoder = new TextDecoder()
  let rest = ''
  for await (const piece of reply.body!) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split('\n')
    rest = lines.pop()!
    events.push(...lines.map((line) => JSON.parse(line)))
    if (await isEnough(events)) break
  }
  gone.abort()
  return events
}

const printed = async (name: string, stream = 'stdout') =>
  said((await call('GET', `${servicePath(name)}/logs`)).events, stream)

/** A service is up before its first line has run; traps, for example, are set when it says so. */
const untilPrinted = (name: string, text: string) => until(async () => (await printed(name)) === text)

/** Services that exit are restarted, so they do not stay in one state. */
async function stateWhen(name: string, holds: (found: Awaited<ReturnType<typeof state>>) => boolean) {
  let found = await state(name)
  await until(async () => {
    found = await state(name)
    return holds(found)
  })
  return found
}

/** Looks only in our box, because other platforms on this host have processes of the same name. */
function firstProcess(): number {
  const mark = `BERTH_SERVICE=${berth.home}/tree/sandbox-`
  const ours = (pid: number): boolean => {
    const [, parent] = /^PPid:\s+(\d+)$/m.exec(readIfThere(`/proc/${pid}/status`)) ?? []
    if (
      readIfThere(`/proc/${pid}/environ`)
        .split('\0')
        .some((entry) => entry.startsWith(mark))
    )
      return true
    return Number(parent) > 1 && ours(Number(parent))
  }
  const found = processesOf('s6-svscan /.berth/service').find(
    ({ pid, line }) => line.endsWith(`${pid} s6-svscan /.berth/service`) && ours(pid),
  )
  return found!.pid
}

/** Processes may exit while they are inspected. */
function readIfThere(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

async function remove(...names: string[]): Promise<void> {
  for (const name of names) expect((await call('DELETE', servicePath(name))).status).toBe(204)
}

describe('a service', () => {
  test('runs, is shown as defined, prints to both streams, stops and is deleted', async () => {
    const script = 'echo out $FROM_SANDBOX $OWN; echo err >&2; pwd; exec sleep 1000'
    const definition = { ...shell(script), env: { OWN: "it's $HOME" }, httpPort: 8000, dir: '/tmp' }
    const began = Date.now()
    const told = await hear('PUT', servicePath('web'), definition, (events) => events.length === 4)
    expect(types(told)[0]).toBe('started')
    expect(said(told, 'stdout')).toBe("out yes it's $HOME\n/tmp\n")
    expect(said(told, 'stderr')).toBe('err\n')
    expect(told.every(({ timestamp }) => timestamp >= began && timestamp <= Date.now())).toBe(true)

    expect(await get('web')).toEqual({
      name: 'web',
      cmd: 'sh',
      args: ['-c', script],
      needs: [],
      http_port: 8000,
      env: { OWN: "it's $HOME" },
      dir: '/tmp',
      state: { name: 'web', status: 'running', pid: expect.any(Number), started_at: expect.stringMatching(/Z$/) },
    })
    expect((await call('GET', `/v1/sprites/${box}/services`)).body).toEqual([await get('web')])

    const stopped = await act('web', 'stop', 'timeout=5s')
    expect(types(stopped.events)).toEqual(['stopping', 'stopped', 'complete'])
    expect(stopped.events[1]!.exit_code).toBe(143)
    expect(stopped.events[2]!.log_files!.stdout).toBe('/.sprite/logs/services/web/stdout/current')
    expect(await state('web')).toEqual({ name: 'web', status: 'stopped', exit_code: 143 })
    expect(await act('web', 'stop')).toMatchObject({ status: 409, body: { error: 'conflict' } })

    await remove('web')
    expect(await call('GET', servicePath('web'))).toMatchObject({
      status: 404,
      body: { error: 'not_found', message: 'service not found' },
    })
    expect((await call('DELETE', servicePath('web'))).status).toBe(404)
  })

  test('is not restarted by the same definition and is replaced by another', async () => {
    const made = await put('same', shell('echo one; exec sleep 1000'))
    expect([made.status, types(made.events)[0], types(made.events).at(-1)]).toEqual([200, 'started', 'complete'])
    const first = await state('same')
    const again = await put('same', shell('echo one; exec sleep 1000'))
    expect(again.lines.filter(Boolean)).toHaveLength(1)
    expect(JSON.parse(again.lines[0]!)).toEqual({ message: expect.stringContaining('already running') })
    expect(await state('same')).toEqual(first)
    const hasPrinted = (events: Event[]) => types(events).includes('stdout')
    const other = await hear('PUT', servicePath('same'), shell('echo two; exec sleep 1000'), hasPrinted)
    expect(types(other)).toEqual(['started', 'stdout'])
    expect(said(other, 'stdout')).toBe('two\n')
    expect((await state('same')).pid).not.toBe(first.pid)
    const restarted = await hear('POST', `${servicePath('same')}/restart`, undefined, hasPrinted)
    expect(types(restarted)).toEqual(['stopping', 'stopped', 'started', 'stdout'])
    await remove('same')
  })

  test('reports why it cannot be started, with the exit codes of a shell', async () => {
    const missing = await put('missing', { cmd: 'no-such-program' }, '30s')
    expect(types(missing.events)).toEqual(['error', 'exit', 'complete'])
    expect(missing.events[0]!.data).toBe('exec: "no-such-program": not found')
    expect(missing.events[1]!.exit_code).toBe(127)
    expect(await stateWhen('missing', ({ status }) => status === 'failed')).toMatchObject({
      error: 'exec: "no-such-program": not found',
      exit_code: 127,
      restart_count: expect.any(Number),
      next_restart_at: expect.any(String),
    })
    const denied = await put('denied', { cmd: '/etc/passwd' }, '30s')
    expect(denied.events.map((event) => event.exit_code)).toEqual([undefined, 126, undefined])
    const nowhere = await put('nowhere', { cmd: 'true', dir: '/no/such/place' }, '30s')
    expect(nowhere.events[0]).toMatchObject({ type: 'error', data: 'chdir /no/such/place: no such directory' })
    await remove('missing', 'denied', 'nowhere')
  })

  test('is restarted with growing delays, which are counted', async () => {
    const crash = await put('crash', shell('echo begun; sleep 0.1; kill -9 $$'), '30s')
    expect(types(crash.events)).toEqual(['started', 'stdout', 'exit', 'complete'])
    expect(crash.events[2]!.exit_code).toBe(137)
    const failed = await stateWhen('crash', ({ status }) => status === 'failed')
    expect(failed).toMatchObject({ error: 'exited with code 137', restart_count: expect.any(Number) })
    // The delay is a second after the first exit and doubles with each further one.
    const wait = Date.parse(failed.next_restart_at) - Date.now()
    expect(wait).toBeLessThanOrEqual(1000 * 2 ** (failed.restart_count - 1))
    const second = await stateWhen('crash', (found) => found.restart_count >= 2 && found.next_restart_at !== undefined)
    const third = await stateWhen('crash', (found) => found.restart_count > second.restart_count)
    // It is not restarted before the announced time.
    expect(Date.now()).toBeGreaterThan(Date.parse(second.next_restart_at))
    // A start request does not wait for it, and resets the count.
    const started = await act('crash', 'start', 'duration=30s')
    expect(types(started.events)).toEqual(['started', 'stdout', 'exit', 'complete'])
    expect((await state('crash')).restart_count).toBeLessThan(third.restart_count)
    // Nor does a stop, which may already meet the next run.
    const stopped = types((await act('crash', 'stop')).events).filter((type) => type !== 'stdout')
    expect(stopped).toEqual(['stopping', 'stopped', 'complete'])
    expect(await state('crash')).toMatchObject({ status: 'stopped' })
    await remove('crash')
  })

  test('accepts signals by name and number, and is restarted if it dies of one', async () => {
    await put('sig', shell('trap "echo usr" USR1; trap "echo urg" URG; echo ready; while :; do sleep 0.02; done'))
    await untilPrinted('sig', 'ready\n')
    const { pid } = await state('sig')
    const send = (signal: string | number) =>
      call('POST', `/v1/sandboxes/${box}/services/signal`, { name: 'sig', signal })
    expect((await send('usr1')).status).toBe(204)
    expect((await send('SIGURG')).status).toBe(204)
    await untilPrinted('sig', 'ready\nusr\nurg\n')
    expect((await send('SIGNOPE')).status).toBe(400)
    expect((await send(9)).status).toBe(204)
    // The new process is starting at first.
    await until(async () => {
      const now = await state('sig')
      return now.status === 'running' && now.pid !== pid
    })
    expect(await state('sig')).toMatchObject({ status: 'running', restart_count: 1 })
    await act('sig', 'stop', 'timeout=100ms')
    expect((await send('TERM')).status).toBe(409)
    expect((await call('POST', `/v1/sandboxes/${box}/services/signal`, { name: 'x', signal: 1 })).status).toBe(404)
    await remove('sig')
  })

  test('is killed after the timeout when it ignores SIGTERM', async () => {
    await put('stubborn', shell('trap "" TERM; echo ready; while :; do sleep 0.02; done'))
    await untilPrinted('stubborn', 'ready\n')
    const began = Date.now()
    const stopped = await act('stubborn', 'stop', 'timeout=300ms')
    expect(Date.now() - began).toBeGreaterThanOrEqual(300)
    expect(stopped.events.find(({ type }) => type === 'stopped')!.exit_code).toBe(137)
    await remove('stubborn')
  })

  test('is stopped with its process group when a shell waits for a child', async () => {
    await put('group', shell('trap "echo bye; exit 3" TERM; echo ready; sleep 1000; echo not reached'))
    await untilPrinted('group', 'ready\n')
    const stopped = await act('group', 'stop', 'timeout=10s')
    expect(said(stopped.events, 'stdout')).toContain('bye')
    expect(stopped.events.find(({ type }) => type === 'stopped')!.exit_code).toBe(3)
    await remove('group')
  })

  test('leaves no processes behind when it forks and exits', async () => {
    const mark = `${4_000_000 + (process.pid % 1_000_000)}`
    await put('forks', shell(`sleep ${mark} & exit 0`), '2s')
    await act('forks', 'stop')
    await until(() => processesOf(`sleep ${mark}`).length === 0)
    await remove('forks')
  })

  test('may print long lines, arbitrary bytes and an incomplete last line', async () => {
    // It is restarted after its exit; the second run does not change the log.
    const once = '[ -e /tmp/odd ] && exec sleep 1000; touch /tmp/odd'
    const script = `${once}; printf 'a\\377b\\n'; head -c 30000 /dev/zero | tr '\\0' x; printf '\\n\\nlast'; exit 7`
    const told = await put('odd', shell(script), '30s')
    const text = said(told.events, 'stdout')
    expect(text.startsWith('a�b\nxxx')).toBe(true)
    expect(text.replaceAll(/[^x]/g, '')).toHaveLength(30_000)
    expect(text.endsWith('\n\nlast\n')).toBe(true)
    expect(told.lines.every((line) => Buffer.byteLength(line) < 64 * 1024)).toBe(true)
    expect(told.events.at(-2)).toMatchObject({ type: 'exit', exit_code: 7 })
    const last = await call('GET', `${servicePath('odd')}/logs?lines=2`)
    expect(types(last.events)).toEqual(['stdout', 'stdout', 'complete'])
    expect(last.events[1]!.data).toBe('last\n')
    await remove('odd')
  })
})

describe('output', () => {
  test('is followed across rotations without losing or repeating lines', async () => {
    // 20 MB at the pace of the reader: each megabyte is printed when the previous one has been read.
    const script = `$| = 1; my $read = 0; $SIG{USR1} = sub { $read++ };
      for my $i (1 .. 20000) { print $i, " ", "y" x 990, "\\n"; next if $i % 1000; select undef, undef, undef, 0.01 while $read < $i / 1000 }
      print "end\\n"; sleep 1000`
    let read = 0
    const told = await hear('PUT', servicePath('flow'), { cmd: 'perl', args: ['-e', script] }, async (events) => {
      const lines = events.length - 1 // the first event is `started`
      for (; lines >= (read + 1) * 1000; read++) {
        const signal = { name: 'flow', signal: 'USR1' }
        expect((await call('POST', `/v1/sandboxes/${box}/services/signal`, signal)).status).toBe(204)
      }
      return events.at(-1)!.data === 'end\n'
    })
    const numbers = said(told, 'stdout')
      .split('\n')
      .map((line) => Number.parseInt(line, 10))
    expect(new Set(types(told))).toEqual(new Set(['started', 'stdout']))
    expect(numbers.slice(0, 20_000)).toEqual(Array.from({ length: 20_000 }, (_, at) => at + 1))
    await remove('flow')
  })

  test('of 100 MB at once does not block others', async () => {
    const script =
      'yes 0123456789012345678901234567890123456789012345678901234567890123456789 | head -c 100000000; echo; echo end; exec sleep 1000'
    const statuses: number[] = []
    let done = false
    const telling = put('flood', shell(script), '2s').finally(() => {
      done = true
    })
    while (!done) statuses.push((await call('GET', servicePath('flood'))).status)
    const told = await telling
    expect(told.events.at(-1)!.type).toBe('complete')
    // Until it is defined the status is 404; after that no request fails or times out.
    expect(statuses.slice(statuses.indexOf(200)).every((status) => status === 200)).toBe(true)
    expect(statuses).toContain(200)
    await until(async () => (await call('GET', `${servicePath('flood')}/logs?lines=1`)).events[0]?.data === 'end\n')
    expect(await state('flood')).toMatchObject({ status: 'running' })
    await remove('flood')
  })
})

describe('services that need others', () => {
  test('start after their dependencies, start them, and keep them from being stopped or deleted', async () => {
    await put('db', shell('echo db; exec sleep 1000'))
    const hasStarted = (events: Event[]) => types(events).includes('started')
    await hear('PUT', servicePath('app'), { ...shell('echo app; exec sleep 1000'), needs: ['db'] }, hasStarted)
    expect(await act('db', 'stop')).toMatchObject({ status: 409 })
    expect((await call('DELETE', servicePath('db'))).status).toBe(409)
    await act('app', 'stop')
    await act('db', 'stop')
    expect(await state('db')).toMatchObject({ status: 'stopped' })
    await hear('POST', `${servicePath('app')}/start`, undefined, hasStarted)
    expect(await state('db')).toMatchObject({ status: 'running' })
    expect(await state('app')).toMatchObject({ status: 'running' })
    expect(Date.parse((await state('app')).started_at)).toBeGreaterThanOrEqual(
      Date.parse((await state('db')).started_at),
    )
    await act('app', 'stop')
    // A service that exits was ready for a moment; this one does not start at all.
    await put('db', { cmd: 'no-such-program' }, '30s')
    const broken = await act('app', 'start', 'duration=30s')
    expect(broken.events[0]).toMatchObject({ type: 'error', data: 'failed to start dependency db' })
    expect(await state('app')).toEqual({
      name: 'app',
      status: 'starting',
      error: 'it needs db, which has failed: exec: "no-such-program": not found',
    })
    await remove('app', 'db')
  })

  test('wait until they are healthy', async () => {
    const health = { command: ['test', '-e', '/tmp/open'], interval: '100ms', threshold: 1 }
    await put('slow', { ...shell('exec sleep 1000'), health })
    expect(await state('slow')).toMatchObject({ status: 'starting', health: { status: 'starting' } })
    await put('after', { ...shell('echo after; exec sleep 1000'), needs: ['slow'] }, '100ms')
    expect(await state('after')).toEqual({ name: 'after', status: 'starting' })
    await put('opens', shell('touch /tmp/open; exec sleep 1000'))
    await until(async () => (await state('after')).status === 'running')
    expect(await state('slow')).toMatchObject({ status: 'running', health: { status: 'healthy' } })
    await put('opens', shell('rm /tmp/open; exec sleep 1000'))
    await until(async () => (await state('slow')).health.status === 'unhealthy')
    await remove('after', 'slow', 'opens')
  })

  test('wait for a response over HTTP', async () => {
    const script = `$SIG{PIPE}="IGNORE"; use IO::Socket::INET; until (-e "/tmp/listen") { select undef, undef, undef, 0.05 } my $s = IO::Socket::INET->new(LocalAddr=>"127.0.0.1",LocalPort=>8123,Listen=>5,ReuseAddr=>1) or die; while (my $c = $s->accept) { <$c>; print $c "HTTP/1.0 204 No Content\\r\\n\\r\\n"; close $c }`
    await put('http', {
      cmd: 'perl',
      args: ['-e', script],
      http_port: 8123,
      health: { http: { path: '/ok' }, interval: '1s' },
    })
    expect((await state('http')).status).toBe('starting')
    await put('lets', shell('touch /tmp/listen; exec sleep 1000'))
    await until(async () => (await state('http')).status === 'running')
    await remove('http', 'lets')
  })
})

describe('the platform', () => {
  test('starts and stops a service 1,000 times', async () => {
    await put('quick', shell('exec sleep 1000'))
    for (let round = 0; round < 500; round++) {
      expect((await act('quick', 'stop', 'timeout=5s')).status).toBe(200)
      expect((await act('quick', 'start', 'duration=1ms')).status).toBe(200)
    }
    expect(await state('quick')).toMatchObject({ status: 'running' })
    expect((await state('quick')).restart_count).toBeUndefined()
    await remove('quick')
  }, 300_000)

  test('continues when the client disconnects', async () => {
    const gone = new AbortController()
    const telling = fetch(`${berth.addresses.sandbox}${servicePath('alone')}?duration=10s`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${berth.token}` },
      body: JSON.stringify(shell('exec sleep 1000')),
      signal: gone.signal,
    })
    await telling
    gone.abort()
    await until(async () => (await call('GET', servicePath('alone'))).body.state?.status === 'running')
    await remove('alone')
  })

  test('may be killed: services keep running, and stopped ones stay stopped', async () => {
    await put('kept', shell('exec sleep 1000'))
    await put('off', shell('exec sleep 1000'))
    await act('off', 'stop')
    const before = await state('kept')
    await end(control)
    control = await berth.up()
    expect(await state('kept')).toEqual(before)
    expect(await state('off')).toMatchObject({ status: 'stopped' })
    await remove('kept', 'off')
  })

  test('runs a service only once when its supervisor was killed', async () => {
    const name = `watched-${process.pid}`
    await put(name, shell('exec sleep 1000'))
    const before = await state(name)
    const supervisor = processesOf(`s6-supervise ${name}`).find(({ line }) => line.endsWith(`s6-supervise ${name}`))!
    process.kill(supervisor.pid, 'SIGKILL')
    await until(async () => ![undefined, before.pid].includes((await state(name)).pid))
    const alive = await call('POST', `/v1/sandboxes/${box}/exec?cmd=test&cmd=-e&cmd=/proc/${before.pid}`)
    expect(alive.lines.join('').at(-1)).toBe('\u0001')
    await remove(name)
  })

  test('starts services again in order when all processes inside were killed', async () => {
    await put('early', shell('exec sleep 1000'))
    await put('later', { ...shell('echo later; exec sleep 1000'), needs: ['early'] })
    await put('idle', shell('exec sleep 1000'))
    await act('idle', 'stop')
    const before = await state('early')
    process.kill(firstProcess(), 'SIGKILL')
    const isBack = async (name: string) => {
      const { status, started_at } = await state(name)
      return status === 'running' && started_at !== before.started_at
    }
    await until(async () => (await isBack('early')) && (await isBack('later')))
    expect(await state('idle')).toMatchObject({ status: 'stopped' })
    const [early, later] = [await state('early'), await state('later')]
    expect(Date.parse(later.started_at)).toBeGreaterThanOrEqual(Date.parse(early.started_at))
    await remove('later', 'early', 'idle')
  })

  test('works with the public client library', async () => {
    const sprite = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox }).sprite(box)
    const heard: string[] = []
    const script = 'echo hi; [ -e /tmp/sdk ] && exec sleep 1000; touch /tmp/sdk; exit 3'
    const stream = await sprite.createService('sdk', { ...shell(script), httpPort: 8080 }, '60s')
    for await (const event of stream) heard.push(event.type)
    expect(heard).toEqual(['started', 'stdout', 'exit', 'complete'])
    await until(async () => (await sprite.getService('sdk')).state?.status === 'running')
    expect(await sprite.getService('sdk')).toMatchObject({ name: 'sdk', httpPort: 8080 })
    await (await sprite.stopService('sdk', '2s')).processAll(() => {})
    expect((await sprite.listServices()).map(({ state }) => state?.status)).toEqual(['stopped'])
    await sprite.deleteService('sdk')
  })
})
