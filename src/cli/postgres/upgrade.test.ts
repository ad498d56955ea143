import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import type { PostgresCluster } from '../api-types.ts'
import { addUpgradeCommand, describeProgress, upgradeText, versionText } from './upgrade.ts'

const id = '0123456789abcdef'
const done: NonNullable<PostgresCluster['upgrade']> = {
  kind: 'minor',
  phase: 'done',
  from: '17.5',
  to: '17.10',
  planned_at: null,
  started_at: '2026-11-15T09:00:00Z',
  finished_at: '2026-11-15T09:00:02Z',
  error: null,
}
const cluster = {
  id,
  name: 'shop',
  status: 'ready',
  organization: { slug: 'personal' },
  pg_major_version: '17',
  pg_version: '17.10',
  pg_newest_version: '17.10',
  upgrade: done,
} as PostgresCluster
const at = (phase: (typeof done)['phase'], change: object = {}): PostgresCluster => ({
  ...cluster,
  upgrade: { ...done, phase },
  ...change,
})

let asked: string[]
let printed: string[]

beforeEach(() => {
  asked = []
  printed = []
})

afterEach(() => vi.unstubAllGlobals())

async function berth(args: string[], ...shown: PostgresCluster[]): Promise<void> {
  vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
    const path = url.replace('http://platform/v1/postgres', '')
    if (path.startsWith('?')) return new Response(JSON.stringify({ data: [{ id, name: 'shop' }] }))
    asked.push(`${method} ${path}${body === undefined ? '' : ` ${body}`}`)
    if (method === 'DELETE') return new Response(null, { status: 204 })
    return new Response(JSON.stringify({ data: shown.length > 1 ? shown.shift() : shown[0] }))
  })
  const program = new Command('berth').exitOverride().configureOutput({ writeErr: () => {} })
  const print = (text: string) => printed.push(text)
  addUpgradeCommand(program, {
    session: () => ({ url: 'http://platform', token: '' }),
    terminal: () => ({ json: false, colors: false, print, note: print }),
    progress: { isTTY: false, write: () => undefined },
  })
  program.commands[0]!.exitOverride().configureOutput({ writeErr: () => {} })
  await program.parseAsync(['upgrade', ...args], { from: 'user' })
}

describe('an upgrade', () => {
  test('is requested and followed until it is done', async () => {
    await berth(['shop'], at('planned'), at('restarting'), cluster)
    expect(asked).toEqual([`POST /${id}/upgrade {}`, `GET /${id}`, `GET /${id}`])
    expect(printed.join('\n')).toMatch(/PostgreSQL +17\.10[\s\S]*upgrade +from 17\.5 to 17\.10, done/)
  })

  test('that went back is an error', async () => {
    const failed = at('failed')
    failed.upgrade!.error = '17.10 does not start'
    await expect(berth(['shop'], at('planned'), failed)).rejects.toThrow(
      'the upgrade of cluster shop failed: 17.10 does not start',
    )
  })

  test('can be planned and cancelled', async () => {
    const planned = at('planned')
    planned.upgrade!.planned_at = '2026-11-20T03:00:00Z'
    await berth(['shop', '--at', '2026-11-20T03:00:00Z'], planned)
    expect(asked).toEqual([`POST /${id}/upgrade {"at":"2026-11-20T03:00:00Z"}`])
    expect(printed.join('\n')).toContain('Cancel it with: berth postgres upgrade shop --cancel')
    await berth(['shop', '--cancel'])
    expect(asked.at(-1)).toBe(`DELETE /${id}/upgrade`)
  })

  test('to a major version creates a cluster', async () => {
    await berth(['shop', '--pg', '17', '--name', 'newer', '--no-wait'], at('restoring', { status: 'creating' }))
    expect(asked).toEqual([`POST /${id}/upgrade {"pg_major_version":"17","name":"newer"}`])
    expect(printed.join('\n')).toContain('Check its progress with: berth postgres show shop')
    const failed = at('failed', { status: 'failed', failure: 'pg_upgrade: no' })
    await expect(berth(['shop', '--pg', '17'], failed)).rejects.toThrow('pg_upgrade: no')
  })

  test.each([
    ['--name', 'other'],
    ['--pg', '15'],
    ['--cancel', '--at', '2026-11-20T03:00:00Z'],
    ['--pg', '17', '--at', '2026-11-20T03:00:00Z'],
  ])('is refused with %s %s', async (...args) => {
    await expect(berth(['shop', ...args], cluster)).rejects.toThrow()
    expect(asked).toEqual([])
  })
})

test('the progress names the phase until the upgrade is over', () => {
  expect(describeProgress(at('planned'), true)).toBe('waiting for the platform')
  expect(describeProgress(at('restoring', { status: 'initializing' }), true)).toBe('restoring a copy: waiting')
  expect(describeProgress(at('verifying', { status: 'initializing' }), true)).toBe('verifying')
  expect(describeProgress(at('verifying', { status: 'failed' }), true)).toBeUndefined()
  expect(describeProgress(cluster, true)).toBeUndefined()
})

test('versions and upgrades are described in the overview', () => {
  expect(versionText(cluster)).toBe('17.10')
  expect(versionText({ ...cluster, pg_version: '17.5' })).toBe('17.5 (17.10 is installed)')
  expect(versionText({ ...cluster, pg_version: null })).toBe('17')
  expect(upgradeText({ ...done, phase: 'failed', error: 'why' })).toBe('from 17.5 to 17.10 failed: why')
  expect(upgradeText({ ...done, phase: 'verifying' })).toBe('from 17.5 to 17.10, verifying')
})
