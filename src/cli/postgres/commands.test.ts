import { describe, expect, test } from 'vitest'
import {
  type Answer,
  asked,
  berth,
  bodies,
  cluster,
  exitPsqlWith,
  id,
  listed,
  ok,
  printed,
  ran,
  shown,
  starting,
  summary,
} from '../../../test/support/postgres-cli.ts'

describe('create', () => {
  test('shows progress and finally the endpoints of the cluster', async () => {
    const created: Answer = [201, { data: starting('creating') }]
    await berth(['create', 'shop', '--disk', '20'], false, created, ok(starting('initializing')), ok(cluster()))
    expect(asked).toEqual(['POST /postgres', `GET /postgres/${id}`, `GET /postgres/${id}`])
    expect(bodies).toEqual([
      { name: 'shop', org_slug: 'personal', plan: 'basic', pg_major_version: '17', disk_size_gb: 20 },
    ])
    expect(shown).toBe('Cluster shop is initializing (0 s)\n')
    expect(printed.join('\n')).toBe(`name    shop
id      ${id}
direct  db:15000
pooler  db:15001

Connect with:            berth postgres connect shop
See connection strings:  berth postgres show shop --reveal`)
  })

  test('prints only the final cluster with --json', async () => {
    await berth(['create'], true, [201, { data: starting('creating') }], ok(cluster()))
    expect(JSON.parse(printed.join(''))).toEqual({ data: cluster() })
    expect(shown).toBe('')
  })

  test('fails with the reason from the platform', async () => {
    const failed = { ...starting('failed'), failure: 'no free ports in 15000-15001' }
    const made: Answer = [201, { data: starting('creating') }]
    await expect(berth(['create'], false, made, ok(failed))).rejects.toThrow(
      'cluster shop failed: no free ports in 15000-15001',
    )
    expect(printed).toEqual([])
    await expect(berth(['create'], true, made, ok(failed))).rejects.toMatchObject({
      message: 'cluster shop failed: no free ports in 15000-15001',
      details: ['Its name stays taken until it is destroyed: berth postgres destroy shop'],
    })
    expect(JSON.parse(printed.join(''))).toEqual({ data: failed })
  })

  test('fails when the cluster is deleted in the meantime', async () => {
    const made: Answer = [201, { data: starting('creating') }]
    const gone: Answer = [404, { error: 'Cluster not found' }]
    await expect(berth(['create'], false, made, ok(starting('deleting')))).rejects.toThrow('cluster shop is deleting')
    await expect(berth(['create'], false, made, gone)).rejects.toThrow('cluster shop is deleted')
  })

  test('rejects an empty name', async () => {
    await expect(berth(['create', ' '], false)).rejects.toThrow('the name is empty')
    expect(asked).toEqual([])
  })

  test('does not wait with --no-wait', async () => {
    const created = { ...starting('creating'), organization: { slug: 'acme' } }
    await berth(['create', '--no-wait', '--org', 'acme'], false, [201, { data: created }])
    expect(asked).toEqual(['POST /postgres'])
    expect(printed.join('\n')).toContain('berth postgres show shop --org acme')
  })
})

describe('list', () => {
  test('explains how to create the first cluster', async () => {
    await berth(['list', '--org', 'acme'], false, listed())
    expect(printed).toEqual(['No clusters in acme; "berth postgres create --org acme" creates one.'])
  })
})

describe('naming a cluster', () => {
  test('finds it by name in the organization', async () => {
    await berth(['users', 'list', 'shop', '--org', 'acme'], true, listed(summary), ok([]))
    expect(asked).toEqual(['GET /postgres?org_slug=acme', `GET /postgres/${id}/users`])
  })

  test('accepts the id of a cluster in another organization, even one that the token may not list', async () => {
    const refused: Answer = [404, { error: 'organization not found' }]
    for (const list of [listed(), refused]) {
      asked.length = 0
      await berth(['users', 'list', id], true, list, ok([]))
      expect(asked.at(-1)).toBe(`GET /postgres/${id}/users`)
    }
    await expect(berth(['users', 'list', 'shop'], true, refused)).rejects.toThrow('organization not found')
  })

  test('fails when there is no such cluster', async () => {
    await expect(berth(['show', 'other'], false, listed(summary))).rejects.toThrow(
      'cluster other not found in organization personal',
    )
  })

  test('rejects an id that is also the name of another cluster', async () => {
    const namesake = { ...summary, id: 'fedcba9876543210', name: id }
    await expect(berth(['destroy', id, '-y'], false, listed(summary, namesake))).rejects.toThrow(
      `"${id}" is the id of one cluster and the name of another; write shop or fedcba9876543210`,
    )
  })
})

describe('show', () => {
  const known = (changes?: object) => [listed(summary), ok(cluster(changes))]

  test('prints everything except the password', async () => {
    const storage = { storage_provisioned_bytes: 10 * 1024 ** 3, storage_used_bytes: 40_000_000 }
    await berth(['show', 'shop'], false, ...known(storage))
    const text = printed.join('\n')
    expect(text).toMatch(/^health +ok since 2026-01-02T03:04:06Z$/m)
    expect(text).toMatch(/^storage +38.1 MB of 10 GB used \(0 %\)$/m)
    expect(text).toMatch(/^memory +1 GB$/m)
    expect(text).toMatch(/^direct +postgresql:\/\/fly-user:\*\*\*@db:15000\/fly-db$/m)
    expect(text).toMatch(/^pooler +postgresql:\/\/fly-user:\*\*\*@db:15001\/fly-db$/m)
  })

  test('prints the password when asked to', async () => {
    await berth(['show', 'shop', '--reveal'], false, ...known(), ok({ username: 'fly-user', password: 'p/w' }))
    expect(asked.at(-1)).toBe(`GET /postgres/${id}/users/fly-user/credentials`)
    expect(printed.join('\n')).toContain('postgresql://fly-user:p%2Fw@db:15001/fly-db')
  })

  test('accepts another user, and explains how to choose one when the default user is gone', async () => {
    await berth(['show', 'shop', '--user', 'a b', '--reveal'], false, ...known(), ok({ password: 'pw' }))
    expect(printed.join('\n')).toContain('postgresql://a%20b:pw@db:15001/fly-db')
    const gone: Answer = [404, { error: 'User not found' }]
    const how = 'cluster shop has no user fly-user; choose one with --user, "berth postgres users list shop" shows all'
    for (const words of [
      ['show', 'shop', '--reveal'],
      ['connect', 'shop'],
    ])
      await expect(berth(words, false, ...known(), gone)).rejects.toThrow(how)
    await expect(berth(['connect', 'shop', '--org', 'acme'], false, ...known(), gone)).rejects.toThrow(
      '"berth postgres users list shop --org acme" shows all',
    )
  })

  test('shows why a cluster is unhealthy or failed', async () => {
    const health = { status: 'down', reason: 'PostgreSQL is stopped', since: '2026-01-02T03:04:06.000Z' }
    await berth(['show', 'shop'], false, ...known({ health }))
    expect(printed.join('\n')).toContain('down since 2026-01-02T03:04:06Z: PostgreSQL is stopped')
    await berth(['show', 'shop', '--reveal'], false, listed(summary), ok({ ...starting('failed'), failure: 'full' }))
    expect(printed.join('\n')).toMatch(/^failure +full$/m)
  })

  test('does not combine --reveal with --json', async () => {
    await expect(berth(['show', 'shop', '--reveal'], true)).rejects.toThrow('users credentials')
  })
})

describe('destroy', () => {
  test('asks for confirmation', async () => {
    await expect(berth(['destroy', 'shop'], false, listed(summary), ok(cluster()))).rejects.toThrow('use --yes')
    expect(asked.some((line) => line.startsWith('DELETE'))).toBe(false)
  })

  test('waits until it is gone', async () => {
    const gone: Answer = [404, { error: 'Cluster not found' }]
    const deleting = ok(cluster({ status: 'deleting' }))
    await berth(['destroy', 'shop', '--yes'], false, listed(summary), ok(cluster()), [202, {}], deleting, gone)
    expect(asked.slice(2)).toEqual([`DELETE /postgres/${id}`, `GET /postgres/${id}`, `GET /postgres/${id}`])
    expect(printed).toEqual(['Destroyed cluster shop.'])
  })
})

describe('connect', () => {
  const answersTo = () => [listed(summary), ok(cluster()), ok({ username: 'fly-user', password: 'secret' })]

  test('runs psql on the server, with what follows the dashes', async () => {
    await berth(['connect', 'shop', '--', '-c', 'select 1', '--json'], false, ...answersTo())
    const target = { host: 'db', port: 15_000, user: 'fly-user', password: 'secret', database: 'fly-db' }
    expect(ran).toEqual([[target, ['-c', 'select 1', '--json']]])
  })

  test('runs psql on the pooler, as another user, in another database', async () => {
    const options = ['--pooler', '--user', 'a/b', '--database', 'orders']
    await berth(['connect', ...options, 'shop', '--', '-c', 'select 1'], false, ...answersTo())
    expect(asked.at(-1)).toBe(`GET /postgres/${id}/users/a%2Fb/credentials`)
    expect(ran).toMatchObject([[{ port: 15_001, user: 'a/b', database: 'orders' }, ['-c', 'select 1']]])
  })

  test('names a missing database when psql cannot connect', async () => {
    exitPsqlWith(2)
    const missing =
      'cluster shop has no database gone; choose one with --database, "berth postgres databases list shop" shows all'
    const connect = (...databases: Answer[]) =>
      berth(['connect', 'shop', '--database', 'gone'], false, ...answersTo(), ...databases)
    await connect(ok([{ name: 'fly-db' }]))
    expect(printed).toEqual([missing])
    await connect(ok([{ name: 'gone' }]))
    await connect([503, { error: 'the cluster did not answer' }])
    expect(printed).toEqual([missing])
  })

  test('rejects both endpoints at once, and a cluster without endpoints', async () => {
    await expect(berth(['connect', 'shop', '--pooler', '--direct'], false)).rejects.toThrow('cannot be used with')
    await expect(berth(['connect', 'shop'], false, listed(summary), ok(starting('creating')))).rejects.toThrow(
      'cluster shop is creating; it accepts connections once it is ready',
    )
    const failed = ok({ ...starting('failed'), failure: 'full' })
    await expect(berth(['connect', 'shop'], false, listed(summary), failed)).rejects.toThrow(
      'cluster shop failed: full',
    )
    expect(ran).toEqual([])
  })
})

describe('users, databases and extensions of a cluster', () => {
  test.each([
    [['users', 'create', 'shop', 'a', '--role', 'reader'], 'POST users', { username: 'a', role: 'reader' }],
    [['users', 'role', 'shop', 'a"b', 'writer'], 'PATCH users/a%22b', { role: 'writer' }],
    [['users', 'delete', 'shop', 'a', '-y'], 'DELETE users/a', undefined],
    [['databases', 'create', 'shop', 'a'], 'POST databases', { name: 'a' }],
    [['databases', 'drop', 'shop', 'a', '-y'], 'DELETE databases/a', undefined],
    [
      ['extensions', 'enable', 'shop', 'hstore', '--schema', 's', '--create-schema'],
      'POST databases/fly-db/extensions',
      { name: 'hstore', schema: 's', create_schema: true },
    ],
    [
      ['extensions', 'disable', 'shop', 'hstore', '--force'],
      'DELETE databases/fly-db/extensions/hstore?force=true',
      undefined,
    ],
  ])('%j asks for %s', async (args, question, body) => {
    await berth(args, true, listed(summary), [204, {}])
    expect(asked.at(-1)).toBe(question.replace(' ', ` /postgres/${id}/`))
    expect(bodies.at(-1)).toEqual(body)
    expect(printed).toEqual(['{}'])
  })

  test.each([
    [
      ['users', 'rotate', 'shop', 'a', '--kill-sessions'],
      'POST users/a/rotate_password',
      { username: 'a', password: 'p' },
    ],
    [['extensions', 'list', 'shop', '--database', 'a'], 'GET databases/a/extensions', []],
    [['logs', 'shop', '-n', '7'], 'GET logs?lines=7', { lines: ['a'] }],
  ])('%j prints what %s answers', async (args, question, data) => {
    await berth(args, true, listed(summary), ok(data))
    expect(asked.at(-1)).toBe(question.replace(' ', ` /postgres/${id}/`))
    expect(JSON.parse(printed.join(''))).toEqual({ data })
  })

  test('removes control characters from the log', async () => {
    await berth(['logs', 'shop'], false, listed(summary), ok({ lines: ['a\u001b[2J', '\tb'] }))
    expect(printed).toEqual(['a\u{fffd}[2J\n    b'])
  })

  test.each([
    ['databases', 'drop'],
    ['users', 'delete'],
  ])('%s %s asks for confirmation', async (...words) => {
    await expect(berth([...words, 'shop', 'a'], false, listed(summary))).rejects.toThrow('use --yes')
  })
})
