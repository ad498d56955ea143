import { beforeEach, describe, expect, test } from 'vitest'
import { breakable } from '../../support/breakable.ts'
import { machinesOf } from '../../support/machine-platform.ts'
import { type Method, type Reply, usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform
const machines = machinesOf(platform, 'shop')
const path = '/v1/apps/shop/network_policies'

const web = { action: 'allow', direction: 'ingress', ports: [{ protocol: 'tcp', port: 80 }] }
const nothing = { action: 'allow', direction: 'egress', ports: [] }
const open80 = { ingress: { tcp: [80], udp: [] } }

beforeEach(async () => {
  await platform.createApp('shop')
})

/** The request waits until running machines have applied the policy, so the reconciler runs meanwhile. */
async function change(method: Method, url: string, body?: object): Promise<Reply> {
  let reply: Reply | undefined
  const asked = platform.call(method, url, body ? { body } : {}).then((answer) => {
    reply = answer
  })
  while (!reply) {
    await platform.turn()
    await new Promise((resolve) => setImmediate(resolve))
  }
  await asked
  return reply
}

const put = (parts: object = {}) =>
  change('POST', path, { name: 'web', selector: { all: true }, rules: [web], ...parts })
const policyOf = (id: string) => fake.machines.machines.get(id)?.spec.policy

describe('a network policy', () => {
  test('is created, shown, changed and deleted', async () => {
    const made = await put()
    expect(made).toMatchObject({
      status: 200,
      body: { id: expect.any(String), name: 'web', selector: { all: true }, rules: [web] },
    })
    const { id } = made.body
    expect((await platform.call('GET', path)).body).toEqual([made.body])
    expect((await platform.call('GET', `${path}/`)).body).toEqual([made.body])
    expect((await platform.call('GET', `${path}/${id}`)).body).toEqual(made.body)
    const other = await put({ id, name: 'none', selector: { metadata: { role: 'db' } }, rules: [nothing] })
    expect(other.body).toEqual({ id, name: 'none', selector: { metadata: { role: 'db' } }, rules: [nothing] })
    expect((await platform.call('GET', path)).body).toEqual([other.body])
    expect((await change('DELETE', `${path}/${id}`)).status).toBe(204)
    expect((await platform.call('GET', path)).body).toEqual([])
    for (const method of ['GET', 'DELETE'] as const)
      expect(await platform.call(method, `${path}/${id}`)).toMatchObject({
        status: 404,
        body: { error: 'network policy not found' },
      })
    expect((await put({ id })).status).toBe(404)
  })

  test('may contain empty lists for unset fields', async () => {
    const { body } = await put({ id: '', selector: { all: true, machines: null, metadata: null }, rules: null })
    expect(body).toMatchObject({ selector: { all: true }, rules: [] })
    const rules = [{ action: 'allow', direction: 'egress', ports: null }]
    expect((await put({ rules })).body.rules).toEqual([nothing])
  })

  test.each<[string, object]>([
    ['name must be 1 to 128', { name: '' }],
    ['name must be', { name: 'a\nb' }],
    ['selector must have at least one', { selector: {} }],
    ['selector must have at least one', { selector: { all: false } }],
    ['selector', { selector: { every: true } }],
    ['selector.machines: the app has no machine "abc"', { selector: { machines: [{ id: 'abc' }] } }],
    ['selector', { selector: { metadata: { role: 7 } } }],
    ['action', { rules: [{ ...web, action: 'deny' }] }],
    ['direction', { rules: [{ ...web, direction: 'both' }] }],
    ['protocol', { rules: [{ ...web, ports: [{ protocol: 'icmp', port: 1 }] }] }],
    ['port', { rules: [{ ...web, ports: [{ protocol: 'tcp', port: 0 }] }] }],
    ['port', { rules: [{ ...web, ports: [{ protocol: 'tcp', port: 65_536 }] }] }],
    ['port', { rules: [{ ...web, ports: [{ protocol: 'tcp', port: '80' }] }] }],
    ['port', { rules: [{ ...web, ports: [{ protocol: 'tcp' }] }] }],
    ['rules', { rules: [{ ...web, cidr: '10.0.0.0/8' }] }],
  ])('is rejected with %s', async (word, parts) => {
    const { status, body } = await put(parts)
    expect({ status, error: body.error }).toEqual({ status: 400, error: expect.stringContaining(word) })
  })

  test('is rejected on a host that cannot enforce it', async () => {
    fake.machines.network = 'none'
    expect(await put()).toMatchObject({ status: 422, body: { error: expect.stringContaining('must run as root') } })
    expect((await platform.call('GET', path)).body).toEqual([])
    fake.machines.network = 'own'
  })

  test('is limited to a hundred per app', async () => {
    await platform.sql(
      `insert into network_policy (app_id, id, name, selector, rules)
       select app.id, n, n, '{"all": true}', '[]' from app, generate_series(1, 100) n`,
    )
    expect(await put()).toMatchObject({ status: 400, body: { error: expect.stringContaining('at most 100') } })
    expect((await put({ id: '7' })).status).toBe(200)
  })

  test('is deleted with its app', async () => {
    await put()
    await platform.call('DELETE', '/v1/apps/shop')
    await platform.work()
    expect(await platform.sql('select 1 from network_policy')).toEqual([])
  })
})

describe('machines', () => {
  test('apply it before the response if they run, and otherwise when they start', async () => {
    const [running, stopped] = [await machines.started(), await machines.started()]
    await machines.call('POST', stopped, '/stop')
    await machines.settle()
    await put()
    expect(policyOf(running)).toEqual(open80)
    await machines.call('POST', stopped, '/start')
    await machines.settle()
    expect(policyOf(stopped)).toEqual(open80)
    const { body } = await platform.call('GET', path)
    await change('DELETE', `${path}/${body[0].id}`)
    expect(policyOf(running)).toEqual({})
    expect(policyOf(stopped)).toEqual({})
  })

  test('are selected by id and by metadata, also by metadata that is set later', async () => {
    const [first, second] = [await machines.started(), await machines.started({}, { metadata: { role: 'web' } })]
    await put({ selector: { metadata: { role: 'web' } } })
    expect([policyOf(first), policyOf(second)]).toEqual([{}, open80])
    await machines.call('POST', first, '/metadata/role', { body: { value: 'web' } })
    await machines.call('DELETE', second, '/metadata/role')
    await machines.settle()
    await platform.turn()
    expect([policyOf(first), policyOf(second)]).toEqual([open80, {}])
    await put({ selector: { machines: [{ id: second }] }, rules: [nothing] })
    expect([policyOf(first), policyOf(second)]).toEqual([open80, { egress: { tcp: [], udp: [] } }])
  })

  test('that are starting apply it as soon as they have started', async () => {
    const id = await machines.started()
    fake.machines.isStarting = true
    const asked = put()
    for (let nth = 0; nth < 5; nth++) await machines.look()
    expect(await platform.sql(`select 1 from machine where policies_version > 0`)).toEqual([])
    fake.machines.isStarting = false
    await platform.sql('update work set run_at = now()')
    expect((await asked).status).toBe(200)
    expect(policyOf(id)).toEqual(open80)
  })

  test('apply it even if any single statement of the reconciler fails', async () => {
    const id = await machines.started()
    const counting = breakable(platform.database.db, 0)
    platform.loopDb = counting.db
    await put()
    platform.loopDb = undefined
    expect(counting.count()).toBeGreaterThan(0)
    for (let nth = 1; nth <= counting.count(); nth++) {
      const rules = [{ ...web, ports: [{ protocol: 'udp', port: nth }] }]
      const [{ id: policy }] = (await platform.call('GET', path)).body
      platform.loopDb = breakable(platform.database.db, nth).db
      const asked = platform.call('POST', path, { body: { id: policy, name: 'web', selector: { all: true }, rules } })
      let isAnswered = false
      void asked.then(() => {
        isAnswered = true
      })
      while (!isAnswered) {
        await platform.sql('update work set run_at = now(), leased_until = null')
        await platform.turn().catch(() => undefined)
      }
      platform.loopDb = undefined
      expect((await asked).status).toBe(200)
      expect(policyOf(id)).toEqual({ ingress: { tcp: [], udp: [nth] } })
    }
  })
})

test('other organizations and read tokens are rejected', async () => {
  const { id } = (await put()).body
  await platform.createOrg('acme')
  const stranger = await platform.createToken('org', 'acme')
  const reader = await platform.createToken('read', 'personal')
  const body = { name: 'web', selector: { all: true }, rules: [] }
  const calls: [Method, string, number][] = [
    ['GET', path, 200],
    ['POST', path, 403],
    ['GET', `${path}/${id}`, 200],
    ['DELETE', `${path}/${id}`, 403],
  ]
  for (const [method, url, asReader] of calls) {
    const options = method === 'POST' ? { body } : {}
    expect((await platform.call(method, url, { ...options, token: null })).status).toBe(401)
    expect((await platform.call(method, url, { ...options, token: stranger })).status).toBe(403)
    expect((await platform.call(method, url, { ...options, token: reader })).status).toBe(asReader)
  }
  await platform.createApp('theirs', { org_slug: 'acme' })
  const theirs = `/v1/apps/theirs/network_policies/${id}`
  for (const method of ['GET', 'DELETE'] as const)
    expect((await platform.call(method, theirs, { token: stranger })).status).toBe(404)
})
