import { readdirSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import {
  accessOf,
  attempt,
  createCluster,
  destroy,
  expectNoTrace,
  readyCluster,
  stateDatabase,
  untilDeleted,
  untilOneServer,
  untilReady,
  ways,
} from '../../support/client.ts'

describe('a control plane that is killed', () => {
  const berth = new Berth()
  const made: string[] = []

  beforeAll(async () => {
    await berth.up()
    await readyCluster(berth, { name: 'first' })
  }, 180_000)

  afterAll(() => destroy(berth))

  /** Returns the ids of all clusters; creates one of this name if necessary. */
  async function idOf(name: string): Promise<string> {
    const { body } = await berth.call('GET', '/v1/postgres?org_slug=personal&include_deleted=true')
    const found = body.data.filter((cluster: { name: string }) => cluster.name === name)
    expect(found.length).toBeLessThanOrEqual(1)
    return found[0]?.id ?? createCluster(berth, { name })
  }

  test.each([0, 40, 80, 120, 160, 200, 240, 280, 320, 400])(
    '%i ms after a request leaves one cluster, which becomes ready',
    async (milliseconds) => {
      const name = `after-${milliseconds}`
      const control = berth.children.at(-1)!
      const request = createCluster(berth, { name }).catch(() => undefined)
      // The time of the kill is what this test varies, so it sleeps.
      await new Promise((resolve) => setTimeout(resolve, milliseconds))
      await end(control)
      await request
      await berth.up()
      const id = await idOf(name)
      made.push(id)
      await untilReady(berth, id)
      for (const way of ways) expect(await attempt(await accessOf(berth, id), way)).toBe(true)
      expect(readdirSync(`${berth.home}/clusters`)).toHaveLength(made.length + 1)
      expect(readdirSync(`${berth.home}/clusters/${id}`).filter((entry) => entry.includes('~'))).toEqual([])
      const db = stateDatabase(berth)
      await db.connect()
      try {
        const { rows } = await db.query('select purpose from cluster_port where cluster_id = $1 order by 1', [id])
        expect(rows).toEqual([{ purpose: 'direct' }, { purpose: 'pooler' }])
      } finally {
        await db.end()
      }
      await untilOneServer(berth, id)
    },
    180_000,
  )

  test.each([0, 60, 120, 240])(
    '%i ms after a deletion leaves nothing',
    async (milliseconds) => {
      const id = made.pop()!
      const { direct, pooler } = await accessOf(berth, id)
      const control = berth.children.at(-1)!
      const request = berth.call('DELETE', `/v1/postgres/${id}`).catch(() => undefined)
      await new Promise((resolve) => setTimeout(resolve, milliseconds))
      await end(control)
      await request
      await berth.up()
      await berth.call('DELETE', `/v1/postgres/${id}`)
      await untilDeleted(berth, id)
      await expectNoTrace(berth, id, [direct, pooler])
    },
    180_000,
  )

  test('leaves nothing of a cluster that is deleted during its creation', async () => {
    for (const milliseconds of [0, 50, 100, 200, 300]) {
      const id = await createCluster(berth)
      await new Promise((resolve) => setTimeout(resolve, milliseconds))
      expect((await berth.call('DELETE', `/v1/postgres/${id}`)).status).toBe(202)
      await untilDeleted(berth, id)
      await expectNoTrace(berth, id, [])
    }
    expect(readdirSync(`${berth.home}/clusters`)).toHaveLength(made.length + 1)
  }, 180_000)
})
