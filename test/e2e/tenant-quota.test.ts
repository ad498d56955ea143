// A tenant with one organization token tries to take more than its share, through the API of a real platform.
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, Berth } from '../support/berth.ts'
import { ExecSocket } from '../support/exec.ts'
import { until } from '../support/until.ts'

let berth: Berth
let attacker = ''
let victim = ''

beforeAll(async () => {
  berth = new Berth({ BERTH_QUOTAS: 'clusters=1,sockets=5,tokens=20' })
  await berth.up()
  const issue = async (slug: string) => {
    await berth.ok('POST', '/v1/orgs', { slug })
    return (await berth.ok('POST', '/v1/tokens', { kind: 'org', org_slug: slug })).token
  }
  attacker = await issue('attacker')
  victim = await issue('victim')
}, 180_000)

afterAll(async () => {
  await berth?.destroy()
})

async function callSandbox(method: string, path: string, token: string, body?: object): Promise<Answer> {
  const reply = await fetch(`${berth.addresses.sandbox}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}` },
    ...(body ? { body: JSON.stringify(body) } : {}),
  })
  const text = await reply.text()
  return { status: reply.status, body: text.startsWith('{') ? JSON.parse(text) : text, headers: reply.headers }
}

const call = (method: string, path: string, token: string, body?: object) =>
  berth.call(method, path, body, { authorization: `Bearer ${token}` })

interface Quota {
  name: string
  used: number
  limit: number | null
}

async function quota(name: string, slug = 'attacker'): Promise<Quota> {
  const { quotas } = await berth.ok('GET', `/v1/orgs/${slug}/quotas`)
  return quotas.find((each: Quota) => each.name === name)
}

/** Runs the attempts in groups, so that the client does not run out of connections. */
async function attempt(count: number, create: (n: number) => Promise<Answer>): Promise<Map<number, number>> {
  const statuses = new Map<number, number>()
  for (let from = 0; from < count; from += 50) {
    const size = Math.min(50, count - from)
    const replies = await Promise.all(Array.from({ length: size }, (_, i) => create(from + i)))
    for (const { status } of replies) statuses.set(status, (statuses.get(status) ?? 0) + 1)
  }
  return statuses
}

describe('an organization cannot take what all share:', () => {
  test('of 300 sandboxes it gets 100, and others still get theirs', async () => {
    const statuses = await attempt(300, (n) => callSandbox('POST', '/v1/sandboxes', attacker, { name: `a${n}` }))
    expect(Object.fromEntries(statuses)).toEqual({ 201: 100, 422: 200 })
    const refused = await callSandbox('POST', '/v1/sandboxes', attacker, { name: 'one-more' })
    expect(refused.body).toEqual({
      error: 'quota_exceeded',
      message:
        'quota sandboxes exceeded: organization attacker uses 100 of 100; delete what is not needed, or ask the operator of the platform to raise the quota',
      limit: 100,
      current_count: 100,
    })
    expect((await callSandbox('POST', '/v1/sandboxes', victim, { name: 'mine' })).status).toBe(201)
  })

  test('creating and deleting in a loop never takes more than twice its slots', async () => {
    const churn = async (n: number) => {
      await callSandbox('DELETE', `/v1/sandboxes/a${n % 100}`, attacker)
      return callSandbox('POST', '/v1/sandboxes', attacker, { name: `a${n % 100}` })
    }
    const statuses = await attempt(400, churn)
    expect([...statuses.keys()].filter((status) => ![201, 409, 422, 429].includes(status))).toEqual([])
    expect((await quota('sandboxes')).used).toBeLessThanOrEqual(100)
    expect((await callSandbox('POST', '/v1/sandboxes', victim, { name: 'another' })).status).toBe(201)
  })

  test('of 150 machines it gets 100', async () => {
    await call('POST', '/v1/apps', attacker, { app_name: 'many', org_slug: 'attacker' })
    const body = { config: { image: 'registry.invalid/x:1' }, skip_launch: true }
    const create = () => call('POST', '/v1/apps/many/machines', attacker, body)
    await until(async () => (await attempt(1, create)).has(200))
    await attempt(150, create)
    await until(async () => {
      await attempt(10, create)
      return (await quota('machines')).used === 100
    })
    const refused = await create()
    expect([refused.status, refused.body.status]).toEqual([422, 'quota_exceeded'])
    expect((await call('POST', '/v1/apps', victim, { app_name: 'theirs', org_slug: 'victim' })).status).toBe(201)
    expect((await call('POST', '/v1/apps/theirs/machines', victim, body)).status).toBe(200)
  })

  test('with volumes it reserves no more than its disk', async () => {
    const create = () => call('POST', '/v1/apps/many/volumes', attacker, { name: 'v', size_gb: 500 })
    const before = await quota('disk_gb')
    const statuses = await attempt(20, create)
    expect(statuses.get(200) ?? 0).toBe(Math.floor((before.limit! - before.used) / 500))
    expect((await quota('disk_gb')).used).toBeLessThanOrEqual(before.limit!)
  })

  test('of many tokens, secrets, addresses and host names it gets its quota', async () => {
    await berth.ok('PATCH', '/v1/orgs/attacker/quotas', { secrets: 3, addresses: 3, hostnames: 3, apps: 3 })
    const kinds: [string, number, (n: number) => Promise<Answer>][] = [
      ['tokens', 19, () => call('POST', '/v1/tokens', attacker, { kind: 'read', org_slug: 'attacker' })],
      ['secrets', 3, (n) => call('POST', `/v1/apps/many/secrets/S${n}`, attacker, { value: 'x' })],
      ['addresses', 3, () => call('POST', '/v1/apps/many/ip_assignments', attacker, { type: 'v6' })],
      [
        'hostnames',
        3,
        (n) => call('POST', '/v1/apps/many/certificates/acme', attacker, { hostname: `h${n}.example.com` }),
      ],
      ['apps', 2, (n) => call('POST', '/v1/apps', attacker, { app_name: `more${n}`, org_slug: 'attacker' })],
    ]
    for (const [name, room, create] of kinds) {
      const statuses = await attempt(25, create)
      const succeeded = [...statuses].filter(([status]) => status < 300).reduce((sum, [, count]) => sum + count, 0)
      expect([name, succeeded, statuses.get(422)]).toEqual([name, room, 25 - room])
    }
  })

  test('of two clusters at the same time it gets one, and none while that exists', async () => {
    const create = (n: number) =>
      call('POST', '/v1/postgres', attacker, { org_slug: 'attacker', plan: 'basic', name: `db${n}` })
    await berth.ok('PATCH', '/v1/orgs/attacker/quotas', { disk_gb: 'unlimited' })
    expect(Object.fromEntries(await attempt(8, create))).toEqual({ 201: 1, 422: 7 })
    const { data } = (await call('GET', '/v1/postgres?org_slug=attacker', attacker)).body
    expect((await call('DELETE', `/v1/postgres/${data[0].id}`, attacker)).status).toBe(202)
    expect((await create(9)).status).toBe(201)
  })

  test('of many WebSockets and streams it gets five, and others still get theirs', async () => {
    const url = (name: string) => `${berth.addresses.sandbox}/v1/sandboxes/${name}/control`
    const { sprites } = (await callSandbox('GET', '/v1/sandboxes?max_results=1', attacker)).body
    const name = sprites[0].name
    const opened = await Promise.all(Array.from({ length: 20 }, () => ExecSocket.attempt(url(name), attacker)))
    const open = opened.filter((each) => each instanceof ExecSocket)
    const refused = opened.flatMap((each) => (each instanceof ExecSocket ? [] : [each.status]))
    expect([open.length, refused.length]).toEqual([5, 15])
    expect(new Set(refused)).toEqual(new Set([429]))
    const stream = await fetch(`${berth.addresses.sandbox}/v1/sandboxes`, {
      headers: { authorization: `Bearer ${attacker}`, accept: 'application/x-ndjson' },
    })
    expect([stream.status, stream.headers.get('retry-after')]).toEqual([429, '1'])
    await stream.text()
    const other = await ExecSocket.open(url('mine'), victim)
    expect((await quota('sockets')).used).toBe(5)
    for (const each of [...open, other]) each.socket.terminate()
    await until(async () => (await quota('sockets')).used === 0)
  })
})

describe('quotas on the command line', () => {
  test('are listed, shown and changed by the operator', async () => {
    const shown = await berth.cli('quotas', 'show', 'victim')
    expect(shown.stdout).toMatch(/^QUOTA +USED +LIMIT +DEFAULT +COUNTS\n/)
    expect(shown.stdout).toMatch(/^clusters +0 +1 +yes /m)
    const changed = await berth.cli('quota', 'set', 'victim', 'clusters=7', 'sandboxes=unlimited', '--json')
    expect(JSON.parse(changed.stdout).quotas).toEqual(
      expect.arrayContaining([
        expect.objectContaining({ name: 'clusters', limit: 7, is_default: false }),
        expect.objectContaining({ name: 'sandboxes', limit: null }),
      ]),
    )
    expect((await berth.cli('quotas', 'list')).stdout).toMatch(/^victim +sandboxes +2 +unlimited +no$/m)
    await expect(berth.cli('quotas', 'set', 'victim', 'clusters=many')).rejects.toThrow(
      /clusters must be a whole number/,
    )
  })

  test('cannot be changed by the organization itself', async () => {
    expect((await call('PATCH', '/v1/orgs/attacker/quotas', attacker, { sandboxes: 'unlimited' })).status).toBe(403)
    expect((await call('PATCH', '/v1/orgs/victim/quotas', attacker, { sandboxes: 0 })).status).toBe(404)
    expect((await call('GET', '/v1/orgs/victim/quotas', attacker)).status).toBe(404)
    expect((await call('GET', '/v1/orgs/attacker/quotas', attacker)).status).toBe(200)
  })
})
