// The requests that `flyctl deploy`, `machine clone`, `scale` and commands without an app send, with the answers they need.
import { beforeEach, describe, expect, test } from 'vitest'
import { machinesOf } from '../../support/machine-platform.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { call, fake } = platform
const machines = machinesOf(platform, 'shop')
const { create, started, settle, look, state } = machines

beforeEach(async () => {
  await platform.createApp('shop')
})

async function graphql(query: string, variables: object = {}) {
  const { status, body } = await call('POST', '/graphql', { body: { query, variables } })
  expect(status).toBe(200)
  expect(body.errors).toBeUndefined()
  return body.data
}

interface ExitView {
  type: string
  request: { exit_event: object }
}

/** flyctl takes the first exit of the list, which is the newest. */
async function newestExit(id: string): Promise<object | undefined> {
  const { body } = await machines.call('GET', id)
  return (body.events as ExitView[]).find(({ type }) => type === 'exit')?.request.exit_event
}

describe('flyctl deploy', () => {
  test('without a file reads the configuration of the newest release', async () => {
    const query = 'query ($appName: String!) { app(name: $appName) { currentReleaseUnprocessed { configDefinition } } }'
    const current = async () => (await graphql(query, { appName: 'shop' })).app.currentReleaseUnprocessed
    expect(await current()).toBeNull()
    const definition = { app: 'shop', processes: { web: 'serve', worker: 'work' }, env: { A: 'b' } }
    const request = { app_name: 'shop', build_id: 0, definition, image: 'nginx', strategy: 'ROLLING' }
    expect((await call('POST', '/api/v1/releases', { body: request })).status).toBe(201)
    expect(await current()).toEqual({ configDefinition: definition })
    // With none or another one, flyctl would remove the process groups of all machines.
    for (const other of [undefined, {}, { app: { image: 'nginx' } }, ['app'], 'app', null]) {
      const body = { app_name: 'shop', image: 'nginx', definition: other }
      expect((await call('POST', '/api/v1/releases', { body })).status).toBe(201)
      expect(await current()).toEqual({ configDefinition: definition })
    }
  })

  test.each(['v6', 'shared_v4'])(
    'gives a new app a %s address, with empty text for what it does not set',
    async (type) => {
      const body = { type, region: '', org_slug: 'personal', network: '', service_name: '' }
      const made = await call('POST', '/v1/apps/shop/ip_assignments', { body })
      expect(made).toMatchObject({ status: 200, body: { type, region: 'global', shared: type === 'shared_v4' } })
      const again = await call('POST', '/v1/apps/shop/ip_assignments', { body: { ...body, org_slug: '' } })
      expect(again.status).toBe(type === 'v6' ? 200 : 409)
      await platform.createOrg('acme')
      const foreign = await call('POST', '/v1/apps/shop/ip_assignments', { body: { ...body, org_slug: 'acme' } })
      expect(foreign).toMatchObject({ status: 400, body: { error: expect.stringContaining('private_v6 only') } })
    },
  )

  test('announces the build of an image that exists already', async () => {
    const announced = { app_name: 'shop', builder_type: 'remote', strategies_available: ['Remote Image Reference'] }
    expect(await call('POST', '/api/v1/builds', { body: announced })).toMatchObject({
      status: 200,
      body: { id: 0, status: 'started' },
    })
    const finished = { build_id: 0, app_name: 'shop', machine_id: '', status: 'completed', logs: '' }
    expect((await call('POST', '/api/v1/builds/finish', { body: finished })).body.status).toBe('completed')
    expect((await call('POST', '/api/v1/builds', { body: { app_name: 'none' } })).status).toBe(404)
    for (const path of ['builds/depot_builder', 'organizations/personal/builders']) {
      const refused = await call('POST', `/api/v1/${path}`, { body: { builder: { region: 'local' } } })
      expect(refused).toMatchObject({ status: 422, body: { error: expect.stringContaining('does not build images') } })
    }
    const token = await platform.createToken('read', 'personal')
    expect((await call('POST', '/api/v1/builds', { body: announced, token })).status).toBe(403)
  })

  test('runs a release command in a machine that it starts itself, and reads its exit code', async () => {
    const config = { auto_destroy: true, restart: { policy: 'no' }, init: { cmd: ['migrate'] } }
    const { body } = await create({ skip_launch: true, skip_secrets: false, region: 'local' }, config)
    expect((await machines.call('GET', body.id, '/wait?state=stopped&timeout=60')).body).toMatchObject({ ok: true })
    await settle()
    expect(await state(body.id)).toBe('stopped')
    expect((await machines.call('POST', body.id, '/start')).body.previous_state).toBe('stopped')
    await settle()
    fake.machines.end(body.id, { exitCode: 3 })
    await look()
    // The program may have ended before the client waits for its start.
    for (const wanted of ['started', 'stopped', 'destroyed']) {
      const reached = await machines.call('GET', body.id, `/wait?state=${wanted}&timeout=0`)
      expect(reached).toMatchObject({ status: 200, body: { ok: true, state: wanted } })
    }
    const { events } = (await machines.call('GET', body.id)).body
    const types = events.map(({ type }: ExitView) => type)
    expect(types.indexOf('exit')).toBeLessThan(types.indexOf('start'))
    expect(await newestExit(body.id)).toMatchObject({ exit_code: 3, requested_stop: false, restarting: false })
  })

  test('of a good version is not taken for the crashing one that it replaces', async () => {
    const id = await started()
    for (const _ of [1, 2, 3]) fake.machines.end(id, { exitCode: 7, restarting: true })
    await look()
    expect(await newestExit(id)).toMatchObject({ exit_code: 7, requested_stop: false, restarting: true })
    await machines.call('POST', id, '', { body: { config: { image: 'nginx:good' } } })
    await settle()
    expect(await state(id)).toBe('started')
    expect(await newestExit(id)).toMatchObject({ exit_code: 130, requested_stop: true, restarting: false })
    const { events } = (await machines.call('GET', id)).body
    expect(events.slice(0, 3).map(({ type }: ExitView) => type)).toEqual(['start', 'exit', 'update'])
  })

  test('sees a requested stop also when the crashing program did not run at that moment', async () => {
    const id = await started()
    fake.machines.end(id, { exitCode: 7, restarting: true })
    fake.machines.machines.get(id)!.is = 'down'
    await machines.call('POST', id, '', { body: { config: { image: 'nginx:good' } } })
    await settle()
    expect(await newestExit(id)).toMatchObject({ exit_code: 7, requested_stop: true, restarting: false })
  })

  test('of a version whose image is missing leaves an exit of the previous one', async () => {
    const id = await started()
    fake.images.available = new Set()
    await machines.call('POST', id, '', { body: { config: { image: 'gone' } } })
    await settle()
    expect(await state(id)).toBe('failed')
    expect(await newestExit(id)).toMatchObject({ exit_code: 130, requested_stop: true })
  })

  test('may use every strategy', async () => {
    const query = 'query ($appName: String!) { canPerformBluegreenDeployment(name: $appName) }'
    expect(await graphql(query, { appName: 'shop' })).toEqual({ canPerformBluegreenDeployment: true })
    const { body } = await call('POST', '/graphql', { body: { query, variables: { appName: 'none' } } })
    expect(body.errors[0].message).toContain('Could not find App')
  })
})

describe('flyctl', () => {
  test('a stopped machine with auto_destroy is destroyed, but not before it ran', async () => {
    const id = await started({}, { auto_destroy: true })
    await machines.call('POST', id, '/stop')
    await settle()
    expect(await state(id)).toBe('destroyed')
    expect(await newestExit(id)).toMatchObject({ requested_stop: true })
    const { body } = await create({ skip_launch: true }, { auto_destroy: true })
    await machines.call('POST', body.id, '', { body: { config: { image: 'nginx:2', auto_destroy: true } } })
    await settle()
    expect(await state(body.id)).toBe('stopped')
  })

  test('machine clone and scale count learn the name and the present size of each volume', async () => {
    const volume = (await call('POST', '/v1/apps/shop/volumes', { body: { name: 'data', size_gb: 2 } })).body
    await platform.workUntil('volume', 'created')
    const id = await started({}, { mounts: [{ volume: volume.id, path: '/data', size_gb: 0 }] })
    const mounts = async () => (await machines.call('GET', id)).body.config.mounts
    expect(await mounts()).toEqual([{ volume: volume.id, path: '/data', name: 'data', size_gb: 2 }])
    expect((await call('PUT', `/v1/apps/shop/volumes/${volume.id}/extend`, { body: { size_gb: 5 } })).status).toBe(200)
    expect(await mounts()).toMatchObject([{ size_gb: 5 }])
    const [listed] = (await call('GET', '/v1/apps/shop/machines')).body
    expect(listed.config.mounts).toEqual(await mounts())
    const query = '{ app(name: "shop") { machines { nodes { config } } } }'
    expect((await graphql(query)).app.machines.nodes[0].config.mounts).toEqual(await mounts())
  })

  test('volumes fork keeps the region of its source', async () => {
    const made = (await call('POST', '/v1/apps/shop/volumes', { body: { name: 'data', region: 'fra' } })).body
    await platform.workUntil('volume', 'created')
    const request = { name: 'data', region: '', size_gb: null, encrypted: null, source_volume_id: made.id }
    const fork = await call('POST', '/v1/apps/shop/volumes', { body: request })
    expect(fork).toMatchObject({ status: 200, body: { region: 'fra' } })
    await platform.workUntil('volume', 'created')
    expect((await call('POST', `/v1/apps/shop/volumes/${made.id}/snapshots`)).status).toBe(200)
    await platform.work().catch(() => undefined)
    const [snapshot] = (await call('GET', `/v1/apps/shop/volumes/${made.id}/snapshots`)).body
    const fromSnapshot = { name: 'data', region: '', snapshot_id: snapshot.id }
    expect((await call('POST', '/v1/apps/shop/volumes', { body: fromSnapshot })).body.region).toBe('fra')
    const moved = await call('POST', '/v1/apps/shop/volumes', { body: { ...request, region: 'iad' } })
    expect(moved.body.region).toBe('iad')
  })

  test('finds machines and volumes by their ids alone', async () => {
    const volume = (await call('POST', '/v1/apps/shop/volumes', { body: { name: 'data', size_gb: 1 } })).body
    const id = await started({ name: 'web' }, { mounts: [{ volume: volume.id, path: '/data' }] })
    const machine = `query ($machineId: String!) { gqlmachine: machine(machineId: $machineId) { id name
      app { name organization { id slug } } } }`
    expect(await graphql(machine, { machineId: id })).toMatchObject({
      gqlmachine: { id, name: 'web', app: { name: 'shop', organization: { slug: 'personal' } } },
    })
    const byId = `query ($id: ID!) { volume(id: $id) { ... on Volume { state sizeGb app { name } attachedMachine { id }
      snapshots { nodes { id } } } } }`
    expect((await graphql(byId, { id: volume.id })).volume).toEqual({
      state: 'created',
      sizeGb: 1,
      app: { name: 'shop' },
      attachedMachine: { id },
      snapshots: { nodes: [] },
    })
    await platform.createOrg('acme')
    const token = await platform.createToken('org', 'acme')
    const refused = async (query: string, variables: object) =>
      (await call('POST', '/graphql', { body: { query, variables }, token })).body.errors[0]
    const missing = { message: 'machine not found', extensions: { code: 'NOT_FOUND' } }
    expect(await refused(machine, { machineId: id })).toMatchObject(missing)
    expect(await refused(machine, { machineId: '../x' })).toMatchObject(missing)
    expect(await refused(byId, { id: volume.id })).toMatchObject({ message: 'volume not found' })
  })

  test('orgs cross-network-replays reads and changes the setting', async () => {
    const read = 'query ($slug: String!) { organization(slug: $slug) { allowAllCrossNetworkReplays } }'
    const setting = async () => (await graphql(read, { slug: 'personal' })).organization.allowAllCrossNetworkReplays
    expect(await setting()).toBe(true)
    const change = `mutation ($input: SetAllowAllCrossNetworkReplaysInput!) { setAllowAllCrossNetworkReplays(input: $input) {
      organization { slug allowAllCrossNetworkReplays } } }`
    const input = { organizationSlug: 'personal', allow: false }
    expect((await graphql(change, { input })).setAllowAllCrossNetworkReplays.organization).toEqual({
      slug: 'personal',
      allowAllCrossNetworkReplays: false,
    })
    expect(await setting()).toBe(false)
    const token = await platform.createToken('read', 'personal')
    const variables = { input: { ...input, allow: true } }
    const { body } = await call('POST', '/graphql', { body: { query: change, variables }, token })
    expect(body.errors[0].message).toBe('this token may only read')
    expect(await setting()).toBe(false)
  })

  test('sends empty text and null for fields that it does not set', async () => {
    const app = { name: 'other', org_slug: 'personal', network: '', app_role_id: '', enable_subdomains: false }
    expect((await call('POST', '/v1/apps?wait=true', { body: app })).status).toBe(201)
    const none = { encrypted: null, require_unique_zone: null, unique_zone_app_wide: null, snapshot_retention: null }
    const volume = {
      ...{ name: 'data', region: '', size_gb: null, ...none, auto_backup_enabled: null },
      ...{ fstype: null, snapshot_id: null, source_volume_id: null, compute: null, compute_image: '' },
    }
    const made = await call('POST', '/v1/apps/other/volumes', { body: volume })
    expect(made).toMatchObject({ status: 200, body: { region: 'local', size_gb: 3 } })
    const change = { snapshot_retention: 7, auto_backup_enabled: null }
    expect((await call('PUT', `/v1/apps/other/volumes/${made.body.id}`, { body: change })).status).toBe(200)
    const place = { compute: null, region: '', count: 1, volume_name: '', volume_size_bytes: 0, weights: null }
    const placed = await call('POST', '/v1/platform/placements', { body: { ...place, org_slug: 'personal' } })
    expect(placed.status, JSON.stringify(placed.body)).toBe(200)
  })
})
