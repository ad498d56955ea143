// Machines from an image in a registry, over HTTP and with the published fly-admin client.
import { createRequire } from 'node:module'
import type fly from 'fly-admin/dist/client.js'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { destroy, processesOf } from '../../support/client.ts'
import { busyboxImage } from '../../support/image.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const FlyAdmin: typeof fly.default = createRequire(import.meta.url)('fly-admin/dist/client').default

const berth = new Berth()
let registry: Registry
let image: string
const path = '/v1/apps/shop/machines'
const script = 'trap "exit 0" INT TERM; echo "hello from $FLY_MACHINE_ID"; echo oops >&2; while :; do sleep 0.05; done'

beforeAll(async () => {
  registry = await startRegistry()
  image = (await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })).reference
  await berth.up()
  await berth.call('POST', '/v1/apps', { app_name: 'shop', org_slug: 'personal' })
}, 120_000)

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

const ok = (method: string, rest: string, body?: object) => berth.ok(method, `${path}${rest}`, body)

const create = (config: object = {}, extra: object = {}) => ok('POST', '', { config: { image, ...config }, ...extra })
const wait = (id: string, state: string) => ok('GET', `/${id}/wait?state=${state}&timeout=60`)
const exec = async (id: string, text: string) =>
  (await ok('POST', `/${id}/exec`, { command: ['sh', '-c', text] })).stdout.trim()

async function log(from: string): Promise<string> {
  const headers = { authorization: `Bearer ${berth.token}` }
  return (await fetch(`${berth.addresses.api}${from}`, { headers })).text()
}

async function started(config: object = {}): Promise<string> {
  const { id } = await create(config)
  await wait(id, 'started')
  return id
}

describe('a machine', () => {
  test('has a log that can be polled, with every line once', async () => {
    const init = { cmd: ['sh', '-c', 'for i in $(seq 1 2500); do echo "line $i"; done; while :; do sleep 1; done'] }
    const ids = await Promise.all([started({ init }), started({ init })])
    const heard = new Map<string, string[]>(ids.map((id) => [id, []]))
    let token = '1'
    await until(async () => {
      const page = await berth.ok('GET', `/api/v1/apps/shop/logs?next_token=${token}`)
      for (const { attributes } of page.data) heard.get(attributes.instance)?.push(attributes.message)
      token = page.meta.next_token
      return ids.every((id) => heard.get(id)!.length >= 2500)
    })
    const lines = Array.from({ length: 2500 }, (_, at) => `line ${at + 1}`)
    for (const id of ids) expect(heard.get(id)!.filter((line) => line.startsWith('line'))).toEqual(lines)
    for (const id of ids) await ok('DELETE', `/${id}?force=true`)
  })

  test('can be created, entered, stopped, started, updated, suspended and destroyed', async () => {
    const made = await create({ env: { COLOUR: 'blue' } }, { name: 'web' })
    expect(made).toMatchObject({ state: 'created', name: 'web' })
    const { id } = made
    expect(await wait(id, 'started')).toMatchObject({ ok: true, state: 'started', version: made.version })
    expect((await ok('GET', `/${id}`)).image_ref).toMatchObject({
      registry: registry.host,
      repository: 'box',
      tag: 'latest',
    })
    expect(await exec(id, 'echo $COLOUR $FLY_APP_NAME; id -u')).toBe('blue shop\n0')
    expect((await ok('GET', `/${id}/ps`)).map(({ command }: { command: string }) => command).join()).toContain('sh')
    await exec(id, 'echo kept > /tmp/file')
    await until(async () => (await log(`${path}/${id}/logs`)).includes(`hello from ${id}`))
    await until(async () => (await log('/v1/apps/shop/logs')).includes('oops'))

    await ok('POST', `/${id}/stop`)
    await wait(id, 'stopped')
    const [exit] = (await ok('GET', `/${id}/events`)).filter(({ type }: { type: string }) => type === 'exit')
    expect(exit.request.exit_event).toMatchObject({ exit_code: 0, requested_stop: true, oom_killed: false })
    expect((await berth.call('POST', `${path}/${id}/exec`, { command: ['true'] })).status).toBe(412)

    expect(await ok('POST', `/${id}/start`)).toMatchObject({ previous_state: 'stopped' })
    await wait(id, 'started')
    expect(await exec(id, 'cat /tmp/file || echo gone')).toBe('gone')

    const updated = await ok('POST', `/${id}`, {
      config: { image, env: { COLOUR: 'red' } },
      current_version: made.version,
    })
    await ok('GET', `/${id}/wait?instance_id=${updated.version}&timeout=60`)
    expect(await exec(id, 'echo $COLOUR')).toBe('red')

    await ok('POST', `/${id}/suspend`)
    await wait(id, 'suspended')
    await ok('POST', `/${id}/start`)
    await wait(id, 'started')
    expect(await exec(id, 'echo $COLOUR')).toBe('red')
    await ok('POST', `/${id}/restart`)
    await wait(id, 'started')

    expect((await berth.call('DELETE', `${path}/${id}`)).status).toBe(412)
    await ok('DELETE', `/${id}?force=true`)
    await wait(id, 'destroyed')
    expect(processesOf(id)).toEqual([])
    expect(await ok('GET', '')).toEqual([])
  }, 120_000)

  test('reports why it could not be started, and leaves nothing behind', async () => {
    for (const [config, why] of [
      [{ image: `${registry.host}/nothing:here` }, 'nothing'],
      [{ init: { exec: ['/bin/none'] } }, 'not found'],
    ] as const) {
      const { id } = await create(config)
      await wait(id, 'destroyed')
      const shown = await ok('GET', `/${id}`)
      expect(shown.failure).toContain(why)
      expect(processesOf(id)).toEqual([])
    }
  })

  test('follows its restart policy, and records exits', async () => {
    const once = await create({ init: { exec: ['sh', '-c', 'exit 3'] }, restart: { policy: 'no' } })
    await wait(once.id, 'stopped')
    expect(
      (await ok('GET', `/${once.id}`)).events.find(({ type }: { type: string }) => type === 'exit').request.exit_event,
    ).toMatchObject({ exit_code: 3, requested_stop: false })
    const ends = (await ok('GET', `/${once.id}/events`)).filter(({ type }: { type: string }) => type === 'exit')
    expect(ends).toHaveLength(1)
    const failing = await create({
      init: { exec: ['sh', '-c', 'exit 4'] },
      restart: { policy: 'on-failure', max_retries: 2 },
    })
    await wait(failing.id, 'stopped')
    expect((await ok('GET', `/${failing.id}`)).failure).toContain('restarted too often')
    const events = await ok('GET', `/${failing.id}/events?limit=50`)
    expect(events.filter(({ type }: { type: string }) => type === 'exit')).toHaveLength(3)
    const gone = await create({ init: { exec: ['true'] }, restart: { policy: 'no' }, auto_destroy: true })
    await wait(gone.id, 'destroyed')
    const killed = await started({ restart: { policy: 'always' } })
    await ok('POST', `/${killed}/signal`, { signal: 9 })
    await until(async () =>
      (await ok('GET', `/${killed}/events`)).some(({ type }: { type: string }) => type === 'restart'),
    )
    expect((await ok('GET', `/${killed}`)).state).toBe('started')
    for (const { id } of [once, failing, { id: killed }]) await ok('DELETE', `/${id}?force=true`)
  }, 120_000)

  test('has the secrets of its app, files, and a volume that outlives it', async () => {
    await berth.call('POST', '/v1/apps/shop/secrets', {
      values: { KEY: 'hidden', PEM: Buffer.from('cert').toString('base64') },
    })
    const volume = (await berth.call('POST', '/v1/apps/shop/volumes', { name: 'data', size_gb: 1 })).body
    const files = [
      { guest_path: '/etc/app.conf', raw_value: Buffer.from('port = 80').toString('base64'), mode: 0o600 },
      { guest_path: '/etc/ssl/app.pem', secret_name: 'PEM' },
    ]
    const config = { files, mounts: [{ volume: volume.id, path: '/data' }] }
    const first = await started(config)
    expect(
      await exec(first, 'echo $KEY; cat /etc/app.conf; echo; stat -c %a /etc/app.conf; cat /etc/ssl/app.pem'),
    ).toBe('hidden\nport = 80\n600\ncert')
    await exec(first, 'echo kept > /data/file; sync')
    expect((await berth.call('POST', path, { config: { image, ...config } })).status).toBe(412)
    await ok('DELETE', `/${first}?force=true`)
    await wait(first, 'destroyed')
    // The end of its log can still be read for a while.
    expect(await log(`${path}/${first}/logs`)).toContain(`"instance":"${first}"`)
    const second = await started(config)
    expect(await exec(second, 'cat /data/file')).toBe('kept')
    await ok('DELETE', `/${second}?force=true`)
  })

  test('has a log that can be followed, even from before its creation', async () => {
    const gone = new AbortController()
    const headers = { authorization: `Bearer ${berth.token}` }
    const reply = await fetch(`${berth.addresses.api}/v1/apps/shop/logs?follow=true&lines=0`, {
      headers,
      signal: gone.signal,
    })
    const id = await started()
    let text = ''
    for await (const part of reply.body!.pipeThrough(new TextDecoderStream())) {
      text += part
      if (text.includes(`hello from ${id}`)) break
    }
    gone.abort()
    expect(text).toContain(`"instance":"${id}"`)
    await ok('DELETE', `/${id}?force=true`)
  })

  test('has health checks', async () => {
    const checks = {
      web: { type: 'http', port: 8080, path: '/index', interval: '1s', timeout: '2s', grace_period: '1s' },
      port: { type: 'tcp', port: 8080, interval: '1s', grace_period: '1s' },
      inside: { type: 'exec', command: ['test', '-e', '/www/index'], interval: '1s', grace_period: '1s' },
    }
    const serve = 'echo well > /www/index; exec httpd -f -p 8080 -h /www'
    const id = await started({ checks, init: { exec: ['sh', '-c', serve] } })
    const statuses = async () =>
      Object.fromEntries(
        (await ok('GET', `/${id}`)).checks.map(({ name, status }: Record<string, string>) => [name, status]),
      )
    await until(async () => Object.values(await statuses()).join() === 'passing,passing,passing')
    await exec(id, 'rm /www/index')
    await until(async () => {
      const now = await statuses()
      return now.web === 'critical' && now.inside === 'critical' && now.port === 'passing'
    })
    await ok('DELETE', `/${id}?force=true`)
  }, 120_000)
})

describe('fly-admin', () => {
  test('supports all operations on machines', async () => {
    const { Machine } = new FlyAdmin(berth.token, { apiUrl: berth.addresses.api, graphqlUrl: berth.addresses.api })
    const made = await Machine.createMachine({ app_name: 'shop', name: 'admin', config: { image } })
    const at = { app_name: 'shop', machine_id: made.id }
    expect(await Machine.waitMachine(at)).toMatchObject({ ok: true })
    expect((await Machine.listMachines('shop')).map(({ id }) => id)).toContain(made.id)
    expect(await Machine.listMachines({ app_name: 'shop', include_deleted: '' })).not.toEqual([])
    expect(await Machine.getMachine(at)).toMatchObject({ id: made.id, state: 'started', name: 'admin' })
    expect(await Machine.listProcesses(at)).not.toEqual([])
    expect((await Machine.listEvents(at)).at(-1)).toMatchObject({ type: 'launch', status: 'created' })
    expect(await Machine.cordonMachine(at)).toEqual({ ok: true })
    expect(await Machine.uncordonMachine(at)).toEqual({ ok: true })
    expect(await Machine.signalMachine({ ...at, signal: 'SIGHUP' as never })).toEqual({ ok: true })
    await Machine.waitMachine(at)
    expect(await Machine.stopMachine({ ...at, timeout: '5s' })).toEqual({ ok: true })
    expect(
      await Machine.waitMachine({ ...at, instance_id: made.instance_id, state: 'stopped' as never }),
    ).toMatchObject({ ok: true })
    await Machine.startMachine(at)
    await Machine.waitMachine(at)
    expect(await Machine.restartMachine({ ...at, timeout: '5s' })).toEqual({ ok: true })
    await Machine.waitMachine(at)
    const updated = await Machine.updateMachine({ ...at, config: { image, env: { A: 'b' } } })
    await Machine.waitMachine({ ...at, instance_id: updated.instance_id })
    expect(await Machine.listVersions(at)).toHaveLength(2)
    const lease = await Machine.acquireLease({ ...at, ttl: 1 })
    expect((await Machine.getLease(at)).data.nonce).toBe(lease.data.nonce)
    await until(async () => (await berth.call('GET', `${path}/${made.id}/lease`)).status === 404)
    expect(await Machine.deleteMachine({ ...at, force: true })).toEqual({ ok: true })
    await Machine.waitMachine({ ...at, state: 'destroyed' as never })
  }, 120_000)
})
