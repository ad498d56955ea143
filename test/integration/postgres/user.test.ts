import { describe, expect, test } from 'vitest'
import { isVerifierOf } from '../../../src/drivers/postgres/sql/scram.ts'
import { untilOneWaits } from '../../support/db.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const { fake } = platform

async function ready(): Promise<string> {
  const body = { org_slug: 'personal', plan: 'basic' }
  const { id } = (await platform.call('POST', '/v1/postgres', { body })).body.data
  await platform.workUntil('cluster', 'ready')
  return id
}

const path = (id: string, name = '') => `/v1/postgres/${id}/users${name && `/${name}`}`
const create = (id: string, username: string) => platform.call('POST', path(id), { body: { username, role: 'writer' } })
const remove = (id: string, name: string) => platform.call('DELETE', path(id, name))
const credentials = (id: string, name: string) => platform.call('GET', `${path(id, name)}/credentials`)
const names = async (id: string) =>
  (await platform.call('GET', path(id))).body.data.map(({ username }: { username: string }) => username)

/** Runs the loop as if the interruption were longer ago. */
async function look(id: string): Promise<void> {
  await platform.sql(`update cluster_user set deleting_at = deleting_at - interval '1 minute',
    next_password_at = next_password_at - interval '1 minute'`)
  for (let looks = 0; looks < 3; looks++) {
    await platform.sql(`update work set run_at = 'infinity', leased_until = null`)
    await platform.sql('update work set run_at = now() where resource_id = $1', [id])
    await platform.turn()
  }
}

async function expectOwnPassword(id: string, name: string): Promise<string> {
  const { password } = (await credentials(id, name)).body.data
  expect(isVerifierOf(fake.createdVerifiers.get(name)!, password)).toBe(true)
  return password
}

test('a change that fails because the cluster is deleted meanwhile is refused, and is no error of the platform', async () => {
  const id = await ready()
  const asked: ReturnType<typeof create>[] = []
  await platform.database.db.transaction(async (tx) => {
    await tx.query('lock table cluster_user in access exclusive mode')
    asked.push(create(id, 'app'))
    await untilOneWaits(platform)
    await tx.query(`update cluster set state = 'deleting' where id = $1`, [id])
    fake.breakCall(1)
  })
  const { status, body } = (await asked[0])!
  expect([status, body.error]).toEqual([422, 'Cluster is deleting; it will not become ready'])
})

/** Calls `attempt` with its nth call of a driver failing after it took effect, for every n, until it succeeds. */
async function forEachCall(attempt: () => Promise<number>, check: () => Promise<void>): Promise<void> {
  for (let call = 1, isDone = false; !isDone; call++) {
    fake.breakCall(call)
    isDone = (await attempt()) < 300
    fake.breakCall(0)
    await check()
  }
}

describe('an interrupted deletion of a user', () => {
  test('hides the user and its password at once, and is finished by the loop', async () => {
    const id = await ready()
    await forEachCall(
      async () => {
        if (!fake.users.has('app')) await create(id, 'app')
        return (await remove(id, 'app')).status
      },
      async () => {
        if (!(await names(id)).includes('app')) expect((await credentials(id, 'app')).status).toBe(404)
        await look(id)
      },
    )
    expect([...fake.users.keys()]).toEqual(['fly-user'])
    expect(await platform.sql('select username from cluster_user')).toEqual([{ username: 'fly-user' }])
  })

  test('is finished by a repeated request', async () => {
    const id = await ready()
    await create(id, 'app')
    await forEachCall(
      async () => (await remove(id, 'app')).status,
      async () => {},
    )
    expect(fake.users.has('app')).toBe(false)
    expect(await platform.sql('select username from cluster_user')).toEqual([{ username: 'fly-user' }])
    expect((await remove(id, 'app')).status).toBe(404)
  })

  test('gives a new user of the same name another password', async () => {
    const id = await ready()
    const seen = new Set<string>()
    let attempts = 0
    await forEachCall(
      async () => {
        if (!fake.users.has('app')) await create(id, 'app')
        return (await remove(id, 'app')).status
      },
      async () => {
        const made = await create(id, 'app')
        if (made.status !== 201) expect(fake.users.has('app')).toBe(true)
        attempts += 1
        seen.add(await expectOwnPassword(id, 'app'))
      },
    )
    expect([seen.size > 1, attempts > 2]).toEqual([true, true])
  })

  test('keeps its password and role from being changed', async () => {
    const id = await ready()
    await create(id, 'app')
    await platform.sql(`update cluster_user set deleting_at = now() where username = 'app'`)
    const role = await platform.call('PATCH', path(id, 'app'), { body: { role: 'reader' } })
    const rotated = await platform.call('POST', `${path(id, 'app')}/rotate_password`, { body: {} })
    expect([role.status, rotated.status]).toEqual([404, 404])
    await look(id)
    expect(fake.users.has('app')).toBe(false)
  })
})

test('the password of a user is the one in effect, wherever its creation was interrupted', async () => {
  const id = await ready()
  let n = 0
  await forEachCall(
    async () => {
      n += 1
      return (await create(id, `app-${n}`)).status
    },
    async () => {
      await look(id)
      const name = `app-${n}`
      if (fake.users.has(name)) await expectOwnPassword(id, name)
      else expect((await credentials(id, name)).status).toBe(404)
    },
  )
})

test('a user who was dropped in SQL is not found, and a new one of that name has another password', async () => {
  const id = await ready()
  await create(id, 'app')
  const before = await expectOwnPassword(id, 'app')
  fake.users.delete('app')
  await create(id, 'app')
  expect(await expectOwnPassword(id, 'app')).not.toBe(before)
  fake.users.delete('app')
  expect((await remove(id, 'app')).status).toBe(404)
  expect((await credentials(id, 'app')).status).toBe(404)
})
