// The routes of flyctl and GraphQL on a real platform, with a token in the format that flyctl requires.
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { Berth } from '../support/berth.ts'
import { busyboxImage } from '../support/image.ts'
import { pushImage, startRegistry } from '../support/registry.ts'
import { until } from '../support/until.ts'

const platform = new Berth()
let token = ''
let clusterId = ''

const call = (method: string, path: string, body?: object) =>
  platform.call(method, path, body, { authorization: `Bearer ${token}` })

const graphql = async (query: string, variables: object = {}) => {
  const { body } = await platform.call('POST', '/graphql', { query, variables }, { authorization: `FlyV1 ${token}` })
  return body
}

beforeAll(async () => {
  await platform.up()
  token = (await platform.cli('tokens', 'create', '--kind', 'org', '--format', 'fm2')).stdout.trim()
  const body = {
    name: 'main',
    region: 'iad',
    org_slug: 'personal',
    plan: 'basic',
    pg_major_version: '17',
    storage_in_gb: 1,
  }
  const made = await call('POST', '/api/v1/organizations/personal/postgresv2', body)
  expect(made).toMatchObject({ status: 201, body: { ok: true } })
  clusterId = made.body.data.id
  await until(async () => (await call('GET', `/api/v1/postgresv2/${clusterId}`)).body.data.status === 'ready', 120)
})

afterAll(() => platform.destroy())

test('prints a token in the format of flyctl', () => {
  expect(token).toMatch(/^fm2_[A-Za-z0-9+/]+=*$/)
})

/** Rewrites a connection string for machines so that it works on the host. */
async function fromHere(uri: string): Promise<string> {
  const { endpoints, private_endpoints: inside } = (await platform.call('GET', `/v1/postgres/${clusterId}`)).body.data
  const url = new URL(uri)
  expect(url.hostname).toBe((inside ?? endpoints.primary).pooler.host)
  url.host = `${endpoints.primary.pooler.host}:${endpoints.primary.pooler.port}`
  return url.href
}

test('shows a cluster with a connection string that works', async () => {
  const { credentials } = (await call('GET', `/api/v1/postgresv2/${clusterId}`)).body
  const client = new pg.Client(await fromHere(credentials.pgbouncer_uri))
  await client.connect()
  try {
    const { rows } = await client.query('select session_user as user, current_database() as name')
    expect(rows).toEqual([{ user: 'fly-user', name: 'fly-db' }])
  } finally {
    await client.end()
  }
})

test('creates and changes users and databases', async () => {
  const base = `/api/v1/postgresv2/${clusterId}`
  const made = await call('POST', `${base}/users`, { username: 'ann', role: 'writer' })
  expect(made).toMatchObject({ status: 201, body: { data: { name: 'ann', role: 'writer' } } })
  const changed = await call('PATCH', `${base}/users/ann`, { role: 'reader' })
  expect(changed).toMatchObject({ status: 200, body: { data: { name: 'ann', role: 'reader' } } })
  expect((await call('GET', `${base}/users`)).body.data).toContainEqual({ name: 'ann', role: 'reader' })
  expect((await call('POST', `${base}/databases`, { name: 'second' })).status).toBe(201)
  expect((await call('GET', `${base}/databases`)).body.data).toContainEqual({ name: 'second' })
  const old = await call('POST', `/api/v1/postgres/${clusterId}/users`, { user_name: 'bob', db_name: 'second' })
  const client = new pg.Client(await fromHere(old.body.connection_uri))
  await client.connect()
  try {
    expect((await client.query('select session_user as user')).rows).toEqual([{ user: 'bob' }])
  } finally {
    await client.end()
  }
  expect((await call('DELETE', `${base}/users/ann`)).status).toBe(204)
})

test('enables and disables extensions', async () => {
  const base = `/api/v1/postgresv2/${clusterId}/databases/fly-db/extensions`
  const find = async (name: string) =>
    (await call('GET', base)).body.data.find((extension: { name: string }) => extension.name === name)
  expect(await find('citext')).toEqual({
    name: 'citext',
    description: expect.any(String),
    docs_url: '',
    default_version: expect.any(String),
    is_system: false,
    installed: null,
  })
  expect((await call('POST', base, { name: 'citext', create_schema_if_needed: false })).status).toBe(204)
  expect(await find('citext')).toMatchObject({ installed: { version: expect.any(String), schema: 'public' } })
  expect((await call('DELETE', `${base}/citext?force=true`)).status).toBe(204)
  expect(await find('citext')).toMatchObject({ installed: null })
})

test('runs a release command in a machine that the client starts, and reports its exit code', async () => {
  const registry = await startRegistry()
  try {
    const image = await pushImage(registry, { repository: 'migrate', ...busyboxImage() })
    await call('POST', '/v1/apps?wait=true', { name: 'migrated', org_slug: 'personal' })
    const path = '/v1/apps/migrated/machines'
    const config = { image: image.reference, auto_destroy: true, restart: { policy: 'no' } }
    const command = { init: { exec: ['/bin/busybox', 'sh', '-c', 'exit 4'] } }
    const made = await call('POST', path, { config: { ...config, ...command }, skip_launch: true })
    expect(made.status, JSON.stringify(made.body)).toBe(200)
    const machine = `${path}/${made.body.id}`
    expect((await call('GET', `${machine}/wait?state=stopped&timeout=60`)).status).toBe(200)
    expect((await call('POST', `${machine}/start`)).body.previous_state).toBe('stopped')
    for (const state of ['started', 'destroyed']) {
      const reached = await call('GET', `${machine}/wait?state=${state}&timeout=60`)
      expect(reached, JSON.stringify(reached.body)).toMatchObject({ status: 200, body: { ok: true } })
    }
    const { events } = (await call('GET', machine)).body
    expect(events.find(({ type }: { type: string }) => type === 'exit').request.exit_event.exit_code).toBe(4)
  } finally {
    await registry.close()
  }
})

test('resolves an image in its registry without pulling it', async () => {
  const registry = await startRegistry()
  try {
    const image = await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['true'] }) })
    await call('POST', '/v1/apps?wait=true', { name: 'shop', org_slug: 'personal' })
    const query = `query ($ref: String!) { app(name: "shop") { image(ref: $ref) { id digest ref compressedSize manifest } } }`
    const { data } = await graphql(query, { ref: image.reference })
    expect(data.app.image).toMatchObject({ digest: image.digest, ref: image.reference, manifest: { schemaVersion: 2 } })
    expect(Number(data.app.image.compressedSize)).toBeGreaterThan(1000)
    const missing = await graphql(query, { ref: `${registry.host}/nothing:here` })
    expect(missing.errors[0]).toMatchObject({ path: ['app', 'image'], extensions: { code: 'NOT_FOUND' } })
  } finally {
    await registry.close()
  }
})
