import { existsSync, globSync, statSync } from 'node:fs'
import { SpritesClient } from '@fly/sprites'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { destroy } from '../../support/client.ts'
import { until } from '../../support/until.ts'

let berth: Berth
let control: Awaited<ReturnType<Berth['up']>>
const [own, other] = ['own', 'other']

beforeAll(async () => {
  berth = new Berth()
  control = await berth.up()
  for (const name of [own, other]) expect((await call('POST', '/v1/sandboxes', { name })).status).toBe(201)
})

afterAll(() => destroy(berth))

async function call(method: string, path: string, body?: object) {
  const reply = await fetch(`${berth.addresses.sandbox}${path}`, {
    method,
    headers: { authorization: `Bearer ${berth.token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await reply.text()
  return { status: reply.status, body: text.startsWith('{') || text.startsWith('[') ? JSON.parse(text) : text }
}

/** Runs a shell in the sandbox and returns its output and exit code. */
async function sh(script: string, name = own): Promise<{ out: string; err: string; code: number }> {
  const sprite = new SpritesClient(berth.token, { baseURL: berth.addresses.sandbox }).sprite(name)
  const ended = await sprite.execFile('sh', ['-c', script]).catch((error) => error.result ?? error)
  return { out: String(ended.stdout), err: String(ended.stderr), code: ended.exitCode }
}

const curl = (options: string) => `curl -sS --unix-socket /.sprite/api.sock ${options}`

/** Sends a request inside and returns the status and the body. */
async function ask(method: string, path: string, body?: object): Promise<{ status: number; body: string }> {
  const data = body ? `-d '${JSON.stringify(body)}'` : ''
  const { out, err } = await sh(curl(`-X ${method} -w '\\n%{http_code}' ${data} 'http://sprite${path}'`))
  const lines = out.split('\n')
  expect(lines.at(-1), err).toMatch(/^\d+$/)
  return { status: Number(lines.at(-1)), body: lines.slice(0, -1).join('\n') }
}

describe('a program in a sandbox', () => {
  test('finds the socket at its start, usable by all users and read-only', async () => {
    const { out } = await sh(
      "stat -Lc '%a %F' /.sprite/api.sock; ls -ld /.sprite/inside | cut -c1-10; tail -1 /.sprite/llm.txt",
    )
    expect(out).toBe('666 socket\ndrwxr-xr-x\n  curl --unix-socket /.sprite/api.sock http://sprite/v1/services\n')
    for (const attempt of ['rm /.sprite/api.sock', 'rm /.sprite/inside/api.sock', 'touch /.sprite/bin/x'])
      expect((await sh(attempt)).code, attempt).not.toBe(0)
    const asNobody = await sh(`setpriv --reuid 65534 --regid 65534 --clear-groups ${curl('http://sprite/v1/tasks')}`)
    expect(asNobody.out).toBe('{"tasks":[]}')
  })

  test('defines a service of its own sandbox', async () => {
    const made = await ask('PUT', '/v1/services/web?duration=50ms', { cmd: 'sleep', args: ['1000'], http_port: 8000 })
    expect(made.status).toBe(200)
    expect(made.body.split('\n').map((line) => line && JSON.parse(line).type)).toEqual(['started', 'complete', ''])
    const outside = await call('GET', `/v1/sandboxes/${own}/services/web`)
    expect(outside.body).toMatchObject({ name: 'web', state: { status: 'running' } })
    expect(JSON.parse((await ask('GET', '/v1/services/web')).body)).toEqual(outside.body)
    expect(JSON.parse((await ask('GET', '/v1/services')).body)).toEqual([outside.body])
    expect((await call('GET', `/v1/sandboxes/${other}/services`)).body).toEqual([])
  })

  test('can access only its own sandbox', async () => {
    for (const path of [
      '/v1/sandboxes',
      `/v1/sandboxes/${other}`,
      `/v1/sprites/${own}`,
      '/v1/exec',
      '/v1/fs/list?path=/',
    ])
      expect(await ask('GET', path), path).toMatchObject({ status: 404, body: expect.stringContaining('not_found') })
    const dots = await sh(
      curl(`--path-as-is -w '%{http_code}' -o /dev/null http://x/v1/services/../../${other}/services`),
    )
    expect(dots.out).toBe('404')
  })

  test('creates tasks', async () => {
    expect((await ask('POST', '/v1/tasks', { name: 'agent', expire: '30m' })).status).toBe(201)
    expect((await ask('POST', '/v1/tasks', { name: 'agent', expire: '30m' })).status).toBe(409)
    expect((await call('GET', `/v1/sandboxes/${own}/tasks`)).body.tasks).toMatchObject([{ name: 'agent' }])
    expect((await ask('DELETE', '/v1/tasks/agent')).status).toBe(204)
    expect((await ask('GET', '/v1/tasks/agent')).status).toBe(404)
  })

  test('can use the sprite-env command', async () => {
    expect((await sh('sprite-env')).code).toBe(2)
    const made = await sh(
      // It exits once, so the stream ends after all of its output.
      `sprite-env services create echo --cmd sh --args -c --arg 'echo "$A", done; [ -e /tmp/once ] && exec sleep 1000; touch /tmp/once; exit 3' --env 'A=it'"'"'s "é"' --needs web --duration 60s`,
    )
    expect(made).toMatchObject({ code: 0, err: '' })
    expect(made.out).toContain(String.raw`"data":"it's \"é\", done\n"`)
    expect(JSON.parse((await sh('sprite-env services get echo')).out)).toMatchObject({ needs: ['web'] })
    expect((await sh('sprite-env services logs echo --lines 1')).out).toContain('done')
    expect((await sh('sprite-env services stop echo --timeout 2s')).out).toContain('"stopped"')
    expect((await sh('sprite-env services delete echo')).code).toBe(0)
    expect(await sh('sprite-env services get echo')).toMatchObject({
      code: 1,
      err: expect.stringContaining('not_found'),
    })
    expect(
      (await sh('sprite-env tasks create build --expire 60 && sprite-env tasks update build --expire 5m')).code,
    ).toBe(0)
    expect((await sh('bash -lc "sprite-env tasks list"')).out).toContain('"name":"build"')
    expect((await sh('sprite-env curl -X DELETE -w "%{http_code}" /v1/tasks/build')).out).toBe('204')
    expect((await sh('sprite-env tasks create')).err).toContain('a name is missing')
    expect((await sh('sprite-env tasks create x --expire 2h')).err).toContain('at most 1h')
  })

  test('makes a checkpoint and restores it', async () => {
    expect((await sh('echo before > /home/sprite/word')).code).toBe(0)
    const made = await sh('sprite-env checkpoints create --comment "from inside"')
    expect(made).toMatchObject({ code: 0, out: expect.stringContaining('Checkpoint v1 created') })
    await sh('echo after > /home/sprite/word')
    const asked = await ask('POST', '/v1/checkpoints/v1/restore')
    expect(asked).toMatchObject({ status: 202, body: expect.stringContaining('Restoring checkpoint v1') })
    await until(async () => (await sh('cat /home/sprite/word')).out === 'before\n')
    await until(async () => (await sh('sprite-env services get web')).out.includes('"running"'))
  })

  test('gets responses from a control plane that was killed and restarted', async () => {
    await end(control)
    control = await berth.up()
    await until(async () => (await sh('sprite-env services get web')).out.includes('"running"'))
  })
})

test('the socket is removed with its sandbox', async () => {
  await sh('true', other)
  const { id } = (await call('GET', `/v1/sandboxes/${other}`)).body
  const [socket] = globSync(`${berth.home}/sandbox/${id}/**/api.sock`)
  expect(statSync(socket!).uid).toBe(process.getuid!())
  expect((await call('DELETE', `/v1/sandboxes/${other}`)).status).toBe(204)
  await until(() => !existsSync(socket!))
})
