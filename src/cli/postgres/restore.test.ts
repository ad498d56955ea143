import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import type { RestoreProgress } from '../api-types.ts'
import { addRestoreCommands, formatPhase, parseRestoreTarget, resolveRestoreTarget } from './restore.ts'

describe('a restore target', () => {
  test.each([
    ['2026-11-15T10:02:03Z', '2026-11-15T10:02:03Z'],
    ['2026-11-15 10:02:03+01:00', '2026-11-15 10:02:03+01:00'],
    ['2026-11-15t10:02:03.1234567-05:45', '2026-11-15t10:02:03.1234567-05:45'],
    [' 2026-11-15 10:02:03.123456+00 ', '2026-11-15 10:02:03.123456+00:00'],
    ['2026-11-15 10:02:03+0530', '2026-11-15 10:02:03+05:30'],
  ])('can be written as %s', (text, time) => {
    expect(parseRestoreTarget(text)).toEqual({ is: 'at', time })
  })

  test.each([
    ['0s-ago', 0],
    ['30s-ago', 30],
    ['5m-ago', 300],
    ['2h-ago', 7200],
    ['1d-ago', 86_400],
    ['1h30m-ago', 5400],
    ['1d2h3m4s-ago', 93_784],
  ])('can be relative: %s', (text, seconds) => {
    expect(parseRestoreTarget(text)).toEqual({ is: 'ago', seconds })
  })

  test.each([
    '',
    '-ago',
    'ago',
    '5m',
    '5 m-ago',
    '-5m-ago',
    '1.5h-ago',
    '30m1h-ago',
    '5m5m-ago',
    '1y-ago',
    'now',
    '10:02:03',
    '2026-11-15',
    '2026-11-15 10:02:03',
    '2026-11-15 10:02+01:00',
    '2026-11-15 10:02:03 +01:00',
    '2026-11-15 10:02:03 UTC',
  ])('cannot be written as %j', (text) => {
    expect(() => parseRestoreTarget(text)).toThrow('Write a time with an offset')
  })

  const latest = '2026-11-15T10:02:01.123456Z'
  const now = Date.parse('2026-11-15T10:02:03Z')

  test('is relative to the clock of the platform', () => {
    const moment = { is: 'ago', seconds: 5400 } as const
    expect(resolveRestoreTarget(moment, latest, now)).toEqual({ time: '2026-11-15T08:32:03.000Z', isClamped: false })
  })

  test('is limited to the end of the window', () => {
    expect(resolveRestoreTarget({ is: 'ago', seconds: 1 }, latest, now)).toEqual({ time: latest, isClamped: true })
    expect(resolveRestoreTarget({ is: 'ago', seconds: 2 }, latest, now)).toMatchObject({ isClamped: false })
    expect(resolveRestoreTarget({ is: 'latest' }, latest, now)).toEqual({ time: latest, isClamped: false })
  })
})

describe('the progress', () => {
  const gigabyte = 1024 ** 3
  const restore = (changes: Partial<RestoreProgress>): RestoreProgress => {
    return {
      source_cluster_id: '0123456789abcdef',
      phase: 'waiting',
      bytes_done: 0,
      bytes_total: null,
      replayed_until: null,
      verified: false,
      error: null,
      ...changes,
    }
  }
  const copying = (done: number, total: number | null) =>
    restore({ phase: 'copying', bytes_done: done, bytes_total: total })
  const replaying = restore({ phase: 'replaying', replayed_until: '2026-11-15T10:02:03.123456Z' })

  test.each([
    [undefined, 'waiting'],
    [restore({}), 'waiting'],
    [copying(0, null), 'copying'],
    [copying(1.2 * gigabyte, 3.4 * gigabyte), 'copying 1.2 of 3.4 GB [#######-------------] 35 %'],
    [copying(900 * 1024 ** 2, gigabyte), 'copying 900 MB of 1 GB [#################---] 87 %'],
    [copying(0, gigabyte), 'copying 0 bytes of 1 GB [--------------------] 0 %'],
    [copying(2 * gigabyte, gigabyte), 'copying 1 of 1 GB [####################] 100 %'],
    [restore({ phase: 'replaying' }), 'replaying'],
    [replaying, 'replaying, until 10:02:03.123456 UTC'],
    [restore({ phase: 'finishing' }), 'finishing'],
    [restore({ phase: 'done' }), 'finishing'],
  ])('of %j is %s at a terminal', (seen, text) => {
    expect(formatPhase(seen, true)).toBe(text)
  })

  test.each([
    [copying(1.2 * gigabyte, 3.4 * gigabyte), 'copying 3.4 GB, 30 %'],
    [replaying, 'replaying, until 10:02 UTC'],
  ])('of %j is %s elsewhere', (seen, text) => {
    expect(formatPhase(seen, false)).toBe(text)
  })
})

describe('the commands', () => {
  type Answer = [status: number, body: object]

  const id = '0123456789abcdef'
  const newId = 'fedcba9876543210'
  const latest = '2026-11-15T10:02:01.123456Z'
  const source = { id, name: 'shop', status: 'ready', recovery_window: { earliest: latest, latest } }
  const endpoints = { primary: { direct: { host: 'db', port: 15_000 }, pooler: { host: 'db', port: 15_001 } } }
  const made = (changes: object = {}) => {
    const restore = { pitr_time: latest, phase: 'waiting', bytes_done: 0, bytes_total: null, replayed_until: null }
    return { id: newId, name: 'new', status: 'creating', organization: { slug: 'personal' }, restore, ...changes }
  }
  const created: Answer = [201, { data: made() }]
  const ready: Answer = [200, { data: made({ status: 'ready', endpoints }) }]
  const failed: Answer = [200, { data: made({ status: 'failed', failure: 'backup x is damaged' }) }]
  const listed: Answer = [200, { data: [source] }]
  const shownSource: Answer = [200, { data: source }]

  let asked: string[]
  let bodies: unknown[]
  let printed: string[]
  let shown = ''

  beforeEach(() => {
    asked = []
    bodies = []
    printed = []
    shown = ''
  })

  afterEach(() => vi.unstubAllGlobals())

  async function berth(args: string[], json: boolean, ...answers: Answer[]): Promise<void> {
    vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
      const headers = { date: 'Sun, 15 Nov 2026 10:02:03 GMT' }
      if (url === 'http://platform/healthz') return new Response('{}', { headers })
      asked.push(`${method} ${url.replace('http://platform/v1/postgres', '')}`)
      if (body) bodies.push(JSON.parse(body))
      const [status, answer] = answers.shift() ?? [500, { error: 'not expected' }]
      return new Response(JSON.stringify(answer), { status, headers })
    })
    const program = new Command('berth').exitOverride().configureOutput({ writeErr: () => {} })
    const print = (text: string) => printed.push(text)
    addRestoreCommands(program, {
      session: () => ({ url: 'http://platform', token: '' }),
      terminal: () => ({ json, colors: false, print, note: print }),
      progress: { write: (text) => (shown += text) },
    })
    for (const command of program.commands) command.exitOverride().configureOutput({ writeErr: () => {} })
    await program.parseAsync(args, { from: 'user' })
  }

  test('restore a time and finally print the endpoints', async () => {
    const replaying: Answer = [200, { data: made({ restore: { phase: 'replaying', replayed_until: null } }) }]
    const time = '2026-11-15 10:02:03+01:00'
    const answers = [listed, shownSource, created, replaying, ready]
    await berth(['restore', 'shop', '--to', time, '--name', 'new'], false, ...answers)
    const watched = [`GET /${newId}`, `GET /${newId}`]
    expect(asked).toEqual(['GET ?org_slug=personal', `GET /${id}`, `POST /${id}/restore`, ...watched])
    expect(bodies).toEqual([{ pitr_time: time, name: 'new' }])
    expect(shown).toBe('replaying (0 s)\n')
    expect(printed.join('\n')).toBe(`Restoring into cluster new (${newId}).
name         new
id           ${newId}
restored to  ${latest}
direct       db:15000
pooler       db:15001

Connect with:            berth postgres connect new
All passwords are new:   berth postgres show new --reveal`)
  })

  test('restore a backup', async () => {
    await berth(['restore', 'shop', '--backup', '20261115-100000F'], true, listed, created, ready)
    expect(bodies).toEqual([{ backup_id: '20261115-100000F' }])
    expect({ shown, answer: JSON.parse(printed.join('')) }).toEqual({ shown: '', answer: ready[1] })
  })

  test.each([
    ['latest', latest, 0],
    ['0s-ago', latest, 1],
    ['3s-ago', '2026-11-15T10:02:00.000Z', 0],
  ])('restore to %s as %s', async (to, time, notes) => {
    await berth(['restore', 'shop', '--to', to, '--no-wait'], false, listed, shownSource, created)
    expect(bodies).toEqual([{ pitr_time: time }])
    expect(printed.filter((line) => line.includes(`window ends at ${latest}`))).toHaveLength(notes)
    expect(printed.at(-1)).toContain('Check its progress with: berth postgres show new')
  })

  const young: Answer = [200, { data: { ...source, recovery_window: null } }]

  test('explain why there is no recovery window', async () => {
    const args = ['restore', 'shop', '--to', '5m-ago', '--no-wait']
    const attempt = berth(args, false, listed, young, [200, { data: [] }])
    await expect(attempt).rejects.toThrow('its first backup has not started yet')
    const hasFailed: Answer = [200, { data: [{ id: 'x', status: 'failed', failure: 'disk full' }] }]
    const hopeless = berth(['restore', 'shop', '--to', 'latest'], false, listed, young, hasFailed)
    await expect(hopeless).rejects.toThrow('its backup x failed: disk full')
    expect(bodies).toEqual([])
  })

  test('wait for the first backup', async () => {
    const answers: Answer[] = [young, [200, { data: [] }], young, [200, { data: [{ id: 'x', status: 'running' }] }]]
    await berth(['restore', 'shop', '--to', 'latest'], false, listed, ...answers, shownSource, created, ready)
    expect(shown).toContain('Cluster shop is waiting for its first backup')
    expect(bodies).toEqual([{ pitr_time: latest }])
  })

  test.each([
    ['2026-11-15T11:02:02.5+01:00', '2026-11-15T11:02:02.5+01:00'],
    ['1s-ago', '2026-11-15T10:02:02.000Z'],
  ])('wait until the archive has %s', async (to, time) => {
    const later = { ...source, recovery_window: { earliest: latest, latest: '2026-11-15T10:02:02.9Z' } }
    const answers: Answer[] = [shownSource, [200, { data: later }], created, ready]
    await berth(['restore', 'shop', '--to', to], false, listed, ...answers)
    expect(shown).toContain('Waiting until the WAL archive reaches that time')
    expect(bodies).toEqual([{ pitr_time: time }])
  })

  test('do not wait for a time in the future', async () => {
    const refused: Answer = [422, { error: 'pitr_time is outside the recovery window' }]
    const attempt = berth(['restore', 'shop', '--to', '2026-11-15T10:02:04Z'], false, listed, shownSource, refused)
    await expect(attempt).rejects.toThrow('outside the recovery window')
  })

  test('fail with the reason from the platform', async () => {
    const args = ['restore', 'shop', '--backup', 'x']
    const reason = `cluster new (${newId}) failed: backup x is damaged`
    await expect(berth(args, false, listed, created, failed)).rejects.toThrow(reason)
    expect(printed).toEqual([`Restoring into cluster new (${newId}).`])
    await expect(berth(args, true, listed, created, failed)).rejects.toThrow(reason)
    expect(JSON.parse(printed[1]!)).toEqual(failed[1])
  })

  test('require either a backup or a time', async () => {
    await expect(berth(['restore', 'shop'], false)).rejects.toThrow('--backup <id> or --to <time>')
    await expect(berth(['restore', 'shop', '--backup', 'x', '--to', 'latest'], false)).rejects.toThrow(
      'cannot be used with',
    )
    await expect(berth(['restore', 'shop', '--to', 'noon'], false)).rejects.toThrow('Write a time with an offset')
    expect(asked).toEqual([])
  })

  test('fork', async () => {
    await berth(['fork', 'shop', '--name', 'new'], true, listed, created, ready)
    expect([asked[1], bodies]).toEqual([`POST /${id}/fork`, [{ name: 'new' }]])
  })

  test('undelete by id, and by a name that is not ambiguous', async () => {
    await berth(['undelete', id], true, created, ready)
    expect([asked[0], bodies]).toEqual([`POST /${id}/undelete`, [{}]])
    await berth(['undelete', id, '--accept-loss'], true, created, ready)
    expect(bodies[1]).toEqual({ accept_loss: true })
    const deleted = { ...source, status: 'deleted', deleted_at: latest }
    await berth(['undelete', 'shop'], true, [200, { data: [source, { ...deleted, id: newId }] }], created, ready)
    expect(asked).toContain(`POST /${newId}/undelete`)
    const two: Answer = [200, { data: [deleted, { ...deleted, id: newId }] }]
    await expect(berth(['undelete', 'shop'], true, two)).rejects.toThrow(`write one of ${id}, ${newId}`)
    await expect(berth(['undelete', 'shop'], true, listed)).rejects.toThrow('no deleted cluster shop')
  })
})
