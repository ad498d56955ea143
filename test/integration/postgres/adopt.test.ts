import { beforeEach, expect, test } from 'vitest'
import { newId } from '../../../src/model/ids.ts'
import { parseLsn } from '../../../src/model/postgres/wal.ts'
import { describedBackup } from '../../support/backup-description.ts'
import { usePlatform } from '../../support/platform.ts'

const platform = usePlatform()
const label = '20261115-100203F'
let id = newId()

beforeEach(() => {
  id = newId()
  platform.fake.archiveEnd = parseLsn('0/4000000')
  platform.fake.archiveTail = { end: parseLsn('0/3000200'), newestCommit: undefined }
  platform.fake.described.push(describedBackup({ clusterId: id, label }))
})

async function adopt(): Promise<void> {
  const { body } = await platform.call('POST', '/v1/postgres/adopt', { body: {} })
  expect(body.data).toEqual({ adopted: [{ id, name: 'shop', backups: 1, windows: 1 }], known: 0, unusable: [] })
}

const adopted = () =>
  platform.sql('select drill_query, retention_days, label, pinned from cluster join backup on cluster_id = cluster.id')

test('an adopted cluster has its pins, its drill query and its retention', async () => {
  platform.fake.descriptions.set(id, {
    drillQuery: 'select 1',
    retentionDays: 21,
    pinned: [label, '20261114-100203F'],
  })
  await adopt()
  expect(await adopted()).toEqual([{ drill_query: 'select 1', retention_days: 21, label, pinned: true }])
})

test('an adopted cluster without a description has none of them', async () => {
  await adopt()
  expect(await adopted()).toEqual([{ drill_query: null, retention_days: null, label, pinned: false }])
})
