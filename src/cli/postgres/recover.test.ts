import { expect, test } from 'vitest'
import { asked, berth, bodies, cluster, id, printed, summary } from '../../../test/support/postgres-cli.ts'

const list = [200, { data: [summary] }] as [number, object]
const answer = (changes: object = {}): [number, object] => [200, { data: cluster(changes) }]
const restore = { phase: 'done', error: null, replayed_until: '2026-11-15T10:02:03Z' }

test('recover waits until the cluster is ready and says that nothing but the data changed', async () => {
  const begun: [number, object] = [202, { data: cluster({ status: 'initializing' }) }]
  await berth(['recover', 'shop', '--yes', '--accept-loss'], false, list, answer(), begun, answer({ restore }))
  expect(asked).toEqual([
    'GET /postgres?org_slug=personal',
    `GET /postgres/${id}`,
    `POST /postgres/${id}/recover`,
    `GET /postgres/${id}`,
  ])
  expect(bodies).toEqual([{ accept_loss: true }])
  expect(printed.join('\n')).toContain('berth postgres recover shop --discard')
  expect(printed.join('\n')).toContain('Users, passwords and endpoints are the same')
})

test('recover asks first, and needs --yes without a terminal', async () => {
  await expect(berth(['recover', 'shop'], false, list, answer())).rejects.toThrow('use --yes')
  expect(asked).toHaveLength(2)
})

test('recover returns at once with --no-wait', async () => {
  const begun: [number, object] = [202, { data: cluster({ status: 'initializing' }) }]
  await berth(['recover', 'shop', '--yes', '--no-wait'], true, list, answer(), begun)
  expect(bodies).toEqual([{}])
  expect(JSON.parse(printed[0]!).data.status).toBe('initializing')
})

test.each([
  ['failed', { status: 'failed', failure: 'the disk is full' }, 'cluster shop failed: the disk is full'],
  [
    'refused',
    { restore: { ...restore, phase: 'failed', error: 'not recovered: x' } },
    'cluster shop: not recovered: x',
  ],
  ['deleted', { status: 'deleting' }, 'cluster shop is deleting'],
])('a recovery that was %s is an error', async (_name, changes, message) => {
  const begun: [number, object] = [202, { data: cluster({ status: 'initializing' }) }]
  await expect(berth(['recover', 'shop', '-y'], false, list, answer(), begun, answer(changes))).rejects.toThrow(message)
})

test('recover --discard removes the damaged data directories', async () => {
  await berth(['recover', 'shop', '--discard', '--yes'], false, list, [200, { data: { discarded: ['damaged-1'] } }])
  expect(asked.at(-1)).toBe(`DELETE /postgres/${id}/recover`)
  expect(printed).toEqual(['Removed damaged-1.'])
  await berth(['recover', 'shop', '--discard', '--yes'], false, list, [200, { data: { discarded: [] } }])
  expect(printed.at(-1)).toBe('There is no damaged data directory.')
  await expect(berth(['recover', 'shop', '--discard', '--accept-loss'], false)).rejects.toThrow('--accept-loss')
})
