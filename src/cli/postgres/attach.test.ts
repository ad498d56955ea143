import { expect, test } from 'vitest'
import {
  type Answer,
  asked,
  berth,
  bodies,
  cluster,
  id,
  listed,
  ok,
  printed,
  starting,
  summary,
} from '../../../test/support/postgres-cli.ts'

const credentials = ok({ username: 'fly-user', password: 'p@ss' })
const databases = ok([{ name: 'fly-db' }, { name: 'orders' }])
const attached: Answer = [201, { data: { app_name: 'web' } }]

test('attaches an app with a secret', async () => {
  await berth(
    ['attach', 'shop', 'web'],
    false,
    listed(summary),
    ok(cluster()),
    [200, { secrets: [{ name: 'A' }] }],
    credentials,
    databases,
    attached,
  )
  expect(asked.slice(1)).toEqual([
    `GET /postgres/${id}`,
    'GET /apps/web/secrets',
    `GET /postgres/${id}/users/fly-user/credentials`,
    `GET /postgres/${id}/databases`,
    `POST /postgres/${id}/attachments`,
  ])
  const secret = { name: 'DATABASE_URL', value: 'postgresql://fly-user:p%40ss@db:15001/fly-db' }
  expect(bodies).toEqual([{ app_name: 'web', secret }])
  expect(printed.join('')).toContain('see DATABASE_URL')
})

test('puts the private endpoint into the secret', async () => {
  const inside = (host: string) => ({ host, port: 5432 })
  const reached = { ...cluster(), private_endpoints: { direct: inside('direct.x'), pooler: inside('x.pg') } }
  for (const [way, host] of [
    [[], 'x.pg'],
    [['--direct'], 'direct.x'],
  ] as const) {
    const answers: Answer[] = [ok(reached), [200, { secrets: [] }], credentials, databases, attached]
    await berth(['attach', 'shop', 'web', ...way], false, listed(summary), ...answers)
    const value = `postgresql://fly-user:p%40ss@${host}:5432/fly-db`
    expect(bodies.at(-1)).toEqual({ app_name: 'web', secret: { name: 'DATABASE_URL', value } })
  }
})

test('attaches an app with another variable and user', async () => {
  const args = ['attach', 'shop', 'web', '--variable', 'ORDERS', '--user', 'a', '--database', 'orders', '--direct']
  await berth(args, true, listed(summary), ok(cluster()), [200, { secrets: [] }], credentials, databases, attached)
  const secret = { name: 'ORDERS', value: 'postgresql://a:p%40ss@db:15000/orders' }
  expect(bodies.at(-1)).toEqual({ app_name: 'web', secret })
  expect(JSON.parse(printed.join(''))).toEqual(attached[1])
})

test('does not attach an app to a database that does not exist', async () => {
  const answers: Answer[] = [ok(cluster()), [200, { secrets: [] }], credentials, databases]
  await expect(
    berth(['attach', 'shop', 'web', '--database', 'gone'], false, listed(summary), ...answers),
  ).rejects.toThrow(
    'cluster shop has no database gone; choose one with --database, "berth postgres databases list shop" shows all',
  )
  expect(bodies).toEqual([])
})

test('does not overwrite an existing secret', async () => {
  const taken: Answer = [200, { secrets: [{ name: 'DATABASE_URL' }] }]
  await expect(berth(['attach', 'shop', 'web'], false, listed(summary), ok(cluster()), taken)).rejects.toThrow(
    '--variable',
  )
  const early = ok(starting('creating'))
  await expect(berth(['attach', 'shop', 'web'], false, listed(summary), early)).rejects.toThrow('once it is ready')
  expect(bodies).toEqual([])
})

test.each([
  [['A'], '. Machines created or updated from now on no longer see B.', ['B']],
  [['A', 'B'], '. No secret of the app was removed.', []],
])('names the secrets that detach removed when %j remain of A and B', async (left, says, removed) => {
  const secrets = (names: string[]): Answer => [200, { secrets: names.map((name) => ({ name })) }]
  const answers: Answer[] = [listed(summary), secrets(['A', 'B']), [204, {}], secrets(left)]
  await berth(['detach', 'shop', 'web'], false, ...answers)
  expect(asked.at(-2)).toBe(`DELETE /postgres/${id}/attachments/web`)
  expect(printed.join('')).toContain(`Detached app web from cluster shop${says}`)
  printed.length = 0
  await berth(['detach', 'shop', 'web'], true, ...answers)
  expect(JSON.parse(printed.join(''))).toEqual({ data: { removed_secrets: removed } })
})
