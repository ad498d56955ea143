// Tokens to which caveats were appended: what they permit, and that nothing else is possible with them.
import { beforeEach, describe, expect, test } from 'vitest'
import type { Route } from '../../../src/api/http/route.ts'
import { platformRoutes, sandboxRoutes } from '../../../src/api/routes.ts'
import { newMachineId } from '../../../src/model/ids.ts'
import { attenuate, caveat, masks } from '../../support/macaroon.ts'
import { insertMachineRow } from '../../support/machine.ts'
import { type Method, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const numbers: Record<string, number> = {}
let root: string
let org: string
let machine: string
let otherMachine: string
let volume: string
let cluster: string

const mint = async (body: object) => (await platform.call('POST', '/v1/tokens', { body })).body.token as string

beforeEach(async () => {
  await platform.createOrg('acme')
  root = await mint({ kind: 'root', format: 'fm2' })
  org = await mint({ kind: 'org', org_slug: 'personal', format: 'fm2' })
  for (const name of ['shop', 'other']) await platform.createApp(name)
  await platform.createApp('theirs', { org_slug: 'acme' })
  for (const { name, number } of await platform.sql(
    `select name, numeric_id as number from app union all select slug, numeric_id from org`,
  ))
    numbers[name] = number
  ;[machine, otherMachine] = [newMachineId(), newMachineId()]
  const [shop] = await platform.sql(`select id from app where name = 'shop'`)
  for (const id of [machine, otherMachine]) await platform.sql(insertMachineRow, [id, shop.id, 'stopped'])
  volume = (await platform.call('POST', '/v1/apps/shop/volumes', { body: { name: 'data' } })).body.id
  cluster = (await platform.call('POST', '/v1/postgres', { body: { org_slug: 'personal', plan: 'basic' } })).body.data
    .id
  await platform.callSandbox('POST', '/v1/sandboxes', { body: { name: 'box' } })
})

const shopOnly = () => attenuate(org, caveat.apps([numbers.shop!, masks.all]))
const status = async (token: string, method: Method, url: string, body?: object) =>
  (await platform.call(method, url, { token, ...(body && { body }) })).status

describe('a token with appended caveats', () => {
  test('permits what all of them permit', async () => {
    const token = shopOnly()
    expect(await status(token, 'GET', '/v1/apps/shop')).toBe(200)
    expect(await status(token, 'POST', '/v1/apps/shop/secrets', { values: { A: 'x' } })).toBe(200)
    expect(await status(token, 'GET', '/v1/apps/other')).toBe(403)
    const reader = attenuate(token, caveat.action(masks.r))
    expect(await status(reader, 'GET', '/v1/apps/shop/secrets')).toBe(200)
    expect(await status(reader, 'POST', '/v1/apps/shop/secrets', { values: { A: 'y' } })).toBe(403)
    const wider = attenuate(reader, caveat.action(masks.all), caveat.apps([numbers.other!, masks.all]))
    for (const app of ['shop', 'other']) expect(await status(wider, 'GET', `/v1/apps/${app}`)).toBe(403)
  })

  test('is refused when it was changed, or has a caveat that the platform does not know', async () => {
    const token = shopOnly()
    const bytes = Buffer.from(token.slice(4), 'base64')
    bytes[bytes.length - 1]! ^= 1
    for (const text of [`fm2_${bytes.toString('base64')}`, attenuate(org, caveat.unknown())])
      expect(await status(text, 'GET', '/v1/apps/shop')).toBe(401)
    expect(await status(attenuate(org, caveat.thirdParty()), 'GET', '/v1/apps/shop')).toBe(403)
  })

  test('ends with the token that it was derived from, and at its own time', async () => {
    const now = Math.floor(Date.now() / 1000)
    for (const [from, until, expected] of [
      [now - 60, now + 60, 200],
      [now - 60, now - 30, 401],
      [now + 30, now + 60, 401],
    ] as const) {
      const token = attenuate(org, caveat.validity(from, until))
      expect(await status(token, 'GET', '/v1/apps/shop')).toBe(expected)
      expect(await status(token, 'GET', '/v1/tokens/current')).toBe(expected)
      expect(await status(token, 'POST', '/graphql', { query: '{ viewer { id } }' })).toBe(expected)
    }
    await platform.sql(`update token set revoked_at = now() where kind = 'org'`)
    expect(await status(shopOnly(), 'GET', '/v1/apps/shop')).toBe(401)
  })

  test('lists only the apps and organizations that it permits', async () => {
    const list = async (token: string) => (await platform.call('GET', '/v1/apps?org_slug=personal', { token })).body
    const names = (apps: { name: string }[]) => apps.map(({ name }) => name)
    const shown = await list(shopOnly())
    expect(names(shown.apps)).toEqual(['shop'])
    expect(shown.total_apps).toBe(1)
    const conditional = attenuate(org, caveat.ifPresent([caveat.apps([numbers.shop!, masks.all])], masks.r))
    expect(names((await list(conditional)).apps)).toEqual(['shop'])
    const ofAcme = attenuate(root, caveat.organization(numbers.acme!, masks.all))
    expect((await list(ofAcme)).apps).toEqual([])
    const { body } = await platform.call('GET', '/v1/orgs', { token: ofAcme })
    expect(body.organizations).toMatchObject([{ slug: 'acme' }])
  })

  test('permits one machine or volume of an app, and neither the others nor the app', async () => {
    const token = attenuate(org, caveat.machines({ [machine]: masks.r | masks.C }))
    const base = '/v1/apps/shop/machines'
    expect(await status(token, 'GET', `${base}/${machine}`)).toBe(200)
    expect(await status(token, 'POST', `${base}/${machine}/cordon`)).toBe(200)
    expect(await status(token, 'DELETE', `${base}/${machine}?force=true`)).toBe(403)
    for (const url of [`${base}/${otherMachine}`, base, '/v1/apps/shop', '/v1/apps/shop/logs'])
      expect(await status(token, 'GET', url), url).toBe(403)
    expect(await status(token, 'POST', base, { config: { image: 'x' } })).toBe(403)
    const ofVolume = attenuate(org, caveat.volumes({ [volume]: masks.all }))
    expect(await status(ofVolume, 'GET', `/v1/apps/shop/volumes/${volume}`)).toBe(200)
    expect(await status(ofVolume, 'GET', '/v1/apps/shop/volumes')).toBe(403)
    expect(await status(ofVolume, 'POST', '/v1/apps/shop/volumes', { name: 'more' })).toBe(403)
  })

  test('cannot reach another resource by a field of the request', async () => {
    const token = attenuate(org, caveat.apps([numbers.other!, masks.all]))
    for (const body of [
      { name: 'copy', source_volume_id: volume },
      { name: 'copy', app_name: 'other', source_volume_id: volume },
    ])
      expect(await status(token, 'POST', '/v1/apps/other/volumes', body)).toBe(403)
    const elsewhere = { type: 'private_v6', org_slug: 'acme', network: 'default' }
    const ofApp = attenuate(root, caveat.apps([numbers.shop!, masks.all]))
    expect(await status(ofApp, 'POST', '/v1/apps/shop/ip_assignments', elsewhere)).toBe(403)
    expect(await status(ofApp, 'POST', '/v1/apps/shop/ip_assignments', { type: 'v4' })).toBe(200)
    expect(
      await status(ofApp, 'POST', '/v1/apps/shop/ip_assignments', { type: 'private_v6', org_slug: 'personal' }),
    ).toBe(200)
    const ofAcme = attenuate(root, caveat.organization(numbers.acme!, masks.all))
    expect(await status(ofAcme, 'GET', '/v1/apps/shop?org_slug=acme')).toBe(403)
    expect(await status(ofAcme, 'POST', '/v1/apps', { app_name: 'new', org_slug: 'personal' })).toBe(403)
    expect(await status(ofAcme, 'POST', '/v1/apps', { app_name: 'new', org_slug: 'acme' })).toBe(201)
    expect(await status(ofAcme, 'GET', `/api/v1/organizations/acme/postgres/${cluster}`)).toBe(401)
    const mounting = { config: { image: 'x', mounts: [{ volume, path: '/data' }] } }
    const noVolumes = attenuate(org, caveat.ifPresent([caveat.volumes({})], masks.all))
    expect(await status(noVolumes, 'POST', '/v1/apps/shop/machines', mounting)).toBe(403)
    expect(await status(noVolumes, 'POST', `/v1/apps/shop/machines/${machine}`, mounting)).toBe(403)
  })

  test('attaches an app to a cluster only if it permits both', async () => {
    const both = (app: string, id: string) =>
      attenuate(
        org,
        caveat.ifPresent([caveat.apps([numbers[app]!, masks.all]), caveat.clusters({ [id]: masks.all })], 0),
      )
    const url = `/v1/postgres/${cluster}/attachments`
    expect(await status(both('other', cluster), 'POST', url, { app_name: 'shop' })).toBe(401)
    expect(await status(both('shop', 'another'), 'POST', url, { app_name: 'shop' })).toBe(401)
    expect(await status(both('shop', cluster), 'POST', url, { app_name: 'shop' })).toBe(201)
    expect(await status(both('other', cluster), 'DELETE', `${url}/shop`)).toBe(401)
  })

  test('permits one cluster, without the password when it may only read, and no copies of it', async () => {
    const token = attenuate(org, caveat.clusters({ [cluster]: masks.all }))
    expect(await status(token, 'GET', `/v1/postgres/${cluster}`)).toBe(200)
    expect(await status(token, 'POST', `/v1/postgres/${cluster}/fork`, { name: 'copy' })).toBe(401)
    expect(await status(token, 'GET', '/v1/postgres?org_slug=personal')).toBe(401)
    expect(await status(token, 'POST', '/v1/postgres', { org_slug: 'personal', plan: 'basic' })).toBe(401)
    const reader = attenuate(token, caveat.action(masks.r))
    expect(await status(reader, 'GET', `/v1/postgres/${cluster}/users/fly-user/credentials`)).toBe(401)
    expect(await status(reader, 'GET', '/v1/apps/shop/secrets?show_secrets=true')).toBe(403)
    const all = attenuate(org, caveat.action(masks.r))
    expect(await status(all, 'GET', '/v1/apps/shop/secrets?show_secrets=true')).toBe(403)
    expect(await status(all, 'GET', '/v1/apps/shop/secrets')).toBe(200)
  })

  test('runs only the commands that it names', async () => {
    const commands = caveat.commands({ args: ['ls'], exact: true }, { args: ['cat', '/a'], exact: false })
    const token = attenuate(org, caveat.ifPresent([commands], masks.r))
    const url = `/v1/apps/shop/machines/${machine}/exec`
    // The machine is stopped, so that a permitted command fails with 412.
    for (const [body, expected] of [
      [{ command: ['ls'] }, 412],
      [{ cmd: 'ls' }, 412],
      [{ cmd: 'cat /a b' }, 412],
      [{ command: ['ls', '-l'] }, 403],
      [{ cmd: 'ls -l' }, 403],
      [{ command: ['rm', '/'], cmd: 'ls' }, 403],
      [{ command: [], cmd: 'rm /' }, 403],
      [{ command: null, cmd: 'ls' }, 412],
      [{ command: [5] }, 403],
      [{ cmd: '"' }, 403],
      [{}, 403],
    ] as const)
      expect(await status(token, 'POST', url, body), JSON.stringify(body)).toBe(expected)
    expect(await status(token, 'GET', '/v1/apps/shop/machines')).toBe(200)
    expect(await status(token, 'POST', `/v1/apps/shop/machines/${machine}/start`)).toBe(403)
    expect(await status(token, 'POST', `/v1/apps/shop/machines/${machine}`, { config: { image: 'x' } })).toBe(403)
  })

  test('cannot create, list or revoke tokens, whose results would not have its caveats', async () => {
    const soon = caveat.validity(0, 4_000_000_000)
    const token = attenuate(root, soon)
    expect(await status(token, 'GET', '/v1/apps/shop')).toBe(200)
    expect(await status(token, 'POST', '/v1/tokens', { kind: 'root' })).toBe(403)
    expect(await status(token, 'POST', '/v1/tokens', { kind: 'read', org_slug: 'personal' })).toBe(403)
    expect(await status(token, 'GET', '/v1/tokens')).toBe(403)
    expect(await status(token, 'DELETE', '/v1/tokens/abc')).toBe(403)
    expect(await status(token, 'POST', '/v1/tokens/root/rotate')).toBe(403)
    expect(await status(token, 'POST', '/v1/apps/shop/deploy_token', {})).toBe(403)
    expect(await status(token, 'POST', '/v1/postgres/adopt', {})).toBe(401)
    const mintUrl = '/v1/organizations/personal/tokens'
    expect((await platform.callSandbox('POST', mintUrl, { token, body: {} })).status).toBe(403)
  })

  test('of a root token uses no images of the host', async () => {
    const body = { config: { image: 'oci:/srv/image' } }
    expect(await status(root, 'POST', '/v1/apps/shop/machines', body)).toBe(200)
    const token = attenuate(root, caveat.validity(0, 4_000_000_000))
    expect(await status(token, 'POST', '/v1/apps/shop/machines', body)).toBe(400)
    expect(await status(token, 'POST', `/v1/apps/shop/machines/${machine}`, body)).toBe(400)
    const sandbox = { name: 'fromhost', image: 'oci:/srv/image' }
    const made = await platform.callSandbox('POST', '/v1/sandboxes', { token, body: sandbox })
    expect(made.status).toBeGreaterThanOrEqual(400)
  })

  test('does not get the stored response of another token with the same origin', async () => {
    const headers = { 'idempotency-key': 'once' }
    const post = (token: string) =>
      platform.call('POST', '/graphql', { token, headers, body: { query: '{ app(name: "shop") { name } }' } })
    expect((await post(org)).body.data).toEqual({ app: { name: 'shop' } })
    const other = attenuate(org, caveat.apps([numbers.other!, masks.all]))
    expect((await post(other)).body.data).toEqual({ app: null })
    const create = (token: string) =>
      platform.call('POST', '/v1/apps/shop/volumes', { token, headers, body: { name: 'kept' } })
    const first = await create(shopOnly())
    expect((await create(shopOnly())).body.id).toBe(first.body.id)
    expect((await create(org)).body.id).not.toBe(first.body.id)
    expect((await create(other)).status).toBe(403)
  })
})

describe('several tokens in one header', () => {
  const ask = async (tokens: string[], method: Method, url: string, body?: object) =>
    (
      await platform.call(method, url, {
        token: null,
        headers: { authorization: `FlyV1 ${tokens.join(',')}` },
        ...(body && { body }),
      })
    ).status

  test('permit what one of them permits', async () => {
    const other = attenuate(org, caveat.apps([numbers.other!, masks.r]))
    const theirs = await mint({ kind: 'org', org_slug: 'acme', format: 'fm2' })
    const dead = attenuate(org, caveat.validity(0, 1))
    const tokens = [dead, other, shopOnly(), theirs]
    for (const app of ['shop', 'other', 'theirs']) expect(await ask(tokens, 'GET', `/v1/apps/${app}`)).toBe(200)
    const body = { values: { A: 'x' } }
    expect(await ask(tokens, 'POST', '/v1/apps/shop/secrets', body)).toBe(200)
    expect(await ask(tokens, 'POST', '/v1/apps/other/secrets', body)).toBe(403)
    expect(await ask(tokens, 'POST', '/v1/apps/theirs/secrets', body)).toBe(200)
    expect(await ask(tokens, 'POST', '/v1/apps', { app_name: 'mine', org_slug: 'personal' })).toBe(404)
    expect(await ask(tokens, 'POST', '/v1/apps', { app_name: 'mine', org_slug: 'acme' })).toBe(201)
    expect(await ask([dead, dead], 'GET', '/v1/apps/shop')).toBe(401)
  })

  test('do not lend each other permissions', async () => {
    const theirs = await mint({ kind: 'read', org_slug: 'acme', format: 'fm2' })
    const tokens = [shopOnly(), theirs]
    expect(await ask(tokens, 'POST', '/v1/apps/theirs/secrets', { values: { A: 'x' } })).toBe(403)
    expect(await ask(tokens, 'GET', '/v1/apps/other')).toBe(403)
  })
})

describe('every operation', () => {
  const open = new Set([
    ...['currentToken', 'listRegions', 'getAuthority', 'authenticateTokens', 'authorizeTokens'],
    ...['listApps', 'listOrgs', 'flyctlListOrganizations', 'graphql'], // these filter their results
  ])
  const everything = async () => {
    const tables = [
      'app',
      'cluster',
      'machine',
      'volume',
      'sandbox',
      'token',
      'secret',
      'ip',
      'release',
      'work',
      'event',
    ]
    const found: unknown[] = []
    for (const table of tables) {
      const [exists] = await platform.sql('select to_regclass($1) is not null as yes', [table])
      if (exists.yes)
        found.push([table, await platform.sql(`select to_jsonb(${table}) as row from ${table} order by 1`)])
    }
    return found
  }
  let release: string
  beforeEach(async () => {
    const body = { app_name: 'shop', image: 'x' }
    release = (await platform.call('POST', '/api/v1/releases', { body })).body.release.id
  })

  const values = (): Record<string, string> => ({
    ...{ app_name: 'shop', org_slug: 'personal', name: 'box', machine_id: machine, volume_id: volume },
    ...{ postgres_cluster_id: cluster, release_id: release, hostname: 'a.example', ip: '127.100.0.1', key: 'a' },
  })
  const urlOf = ({ path }: Route) => path.replaceAll(/\{(\w+)\}/g, (_all, name: string) => values()[name] ?? 'x')
  const body = {
    org_slug: 'personal',
    app_name: 'shop',
    name: 'new',
    plan: 'basic',
    values: {},
    config: { image: 'x' },
  }

  async function listAllowed(token: string, isAsked: (route: Route) => boolean): Promise<string[]> {
    const allowed: string[] = []
    for (const [routes, call] of [
      [platformRoutes, platform.call],
      [sandboxRoutes, platform.callSandbox],
    ] as const) {
      for (const route of routes) {
        if (open.has(route.id) || !isAsked(route)) continue
        const query = route.method === 'GET' ? '?org_slug=personal' : ''
        const sent = route.rawBody ? { raw: 'x' } : route.method === 'GET' ? {} : { body }
        const reply = await call(route.method, urlOf(route) + query, { token, ...sent })
        const isRefused = [401, 403].includes(reply.status) && /caveats|root token/.test(JSON.stringify(reply.body))
        if (!isRefused) allowed.push(`${route.id} ${reply.status}`)
      }
    }
    return allowed
  }

  test.each<[string, () => string]>([
    ['another app', () => attenuate(org, caveat.apps([999_999, masks.all]))],
    ['another organization', () => attenuate(root, caveat.organization(numbers.acme!, masks.all))],
    ['a machine', () => attenuate(root, caveat.machines({ none: masks.all }))],
    ['a mutation', () => attenuate(root, caveat.mutations('createApp'))],
    [
      'nothing of any kind',
      () => attenuate(org, caveat.ifPresent([caveat.apps(), caveat.features({}), caveat.clusters({})], 0)),
    ],
  ])('is refused to a token for %s', async (_name, make) => {
    const before = await everything()
    expect(await listAllowed(make(), () => true)).toEqual([])
    expect(await everything()).toEqual(before)
  })

  test.each<[string, () => string]>([
    ['by a mask', () => attenuate(root, caveat.action(masks.r))],
    ['of an organization', () => attenuate(org, caveat.organization(numbers.personal!, masks.r))],
    ['beside commands', () => attenuate(org, caveat.ifPresent([caveat.commands()], masks.r))],
  ])('that writes is refused to a token that may only read %s', async (_name, make) => {
    const before = await everything()
    expect(await listAllowed(make(), ({ scope }) => scope === 'write')).toEqual([])
    expect(await everything()).toEqual(before)
  })
})
