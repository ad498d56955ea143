import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest'
import type { PostgresBackup } from '../api-types.ts'
import { addBackupCommands, formatSpan } from './backup.ts'

const id = '0123456789abcdef'
const completed: PostgresBackup = {
  id: '20261115-090000F',
  status: 'completed',
  type: 'full',
  size_bytes: 44_040_192,
  started_at: '2026-11-15T09:00:00.25Z',
  finished_at: '2026-11-15T09:00:02.350001Z',
  verified_at: '2026-11-15T09:00:02.350001Z',
  pinned: false,
}
const running: PostgresBackup = { ...completed, status: 'running', finished_at: null, verified_at: null }
const failed: PostgresBackup = { ...running, status: 'failed', size_bytes: null, failure: 'disk full' }

let asked: string[]
let printed: string[]
let shown = ''

beforeEach(() => {
  asked = []
  printed = []
  shown = ''
})

afterEach(() => vi.unstubAllGlobals())

let begins: () => Response

beforeEach(() => {
  begins = () => new Response(null, { status: 202 })
})

async function berth(args: string[], json: boolean, ...lists: PostgresBackup[][]): Promise<void> {
  vi.stubGlobal('fetch', async (url: string, { method }: { method: string }) => {
    const path = url.replace('http://platform/v1/postgres', '')
    asked.push(`${method} ${path}`)
    if (method === 'POST') return begins()
    if (method === 'PATCH') return new Response(JSON.stringify({ data: completed }))
    const data = path.startsWith('?') ? [{ id, name: 'shop' }] : lists.shift()
    return new Response(JSON.stringify({ data }))
  })
  const program = new Command('berth')
  const print = (text: string) => printed.push(text)
  addBackupCommands(program, {
    session: () => ({ url: 'http://platform', token: '' }),
    terminal: () => ({ json, colors: false, print, note: print }),
    progress: { isTTY: true, write: (text) => (shown += text) },
  })
  await program.parseAsync(args, { from: 'user' })
}

describe('backups', () => {
  test('are listed with size and duration', async () => {
    await berth(['backups', 'shop'], false, [completed])
    expect(printed.join('\n')).toBe(
      [
        'ID                STATUS     SIZE   STARTED               TOOK   VERIFIED',
        '20261115-090000F  completed  42 MB  2026-11-15T09:00:00Z  2.1 s  2026-11-15T09:00:02Z',
      ].join('\n'),
    )
  })

  test('are listed with their failure', async () => {
    await berth(['backups', 'shop'], false, [failed, completed])
    expect(printed.join('\n')).toMatch(/VERIFIED +FAILURE\n.* failed +- .* disk full\n.* completed .* -$/s)
  })

  test('are listed as pinned', async () => {
    await berth(['backups', 'shop'], false, [{ ...completed, pinned: true }])
    expect(printed.join('\n')).toContain('20261115-090000F  completed, pinned  42 MB')
  })

  test('are announced when there are none yet', async () => {
    await berth(['backups', 'shop'], false, [])
    expect(printed).toEqual(['Cluster shop has no backups yet; the first one starts automatically.'])
    await berth(['backups', 'shop'], true, [])
    expect(JSON.parse(printed[1]!)).toEqual({ data: [] })
  })
})

describe('backup', () => {
  test('shows progress until it is completed', async () => {
    await berth(['backup', 'shop'], false, [running], [running], [completed])
    expect(asked).toContain(`POST /${id}/backups`)
    expect(shown).toContain('Backup 20261115-090000F is running, 42 MB so far (0 s)')
    expect(printed.join('\n')).toBe(
      [
        'Backup 20261115-090000F is completed: 42 MB in 2.1 s, all checksums verified.',
        'Restore it with: berth postgres restore shop --backup 20261115-090000F',
      ].join('\n'),
    )
  })

  test('fails with the reason', async () => {
    await expect(berth(['backup', 'shop'], false, [running], [failed])).rejects.toThrow(
      'backup 20261115-090000F failed: disk full',
    )
    expect(printed).toEqual([])
  })

  test('prints only the final backup with --json', async () => {
    await berth(['backup', 'shop'], true, [running], [running], [completed])
    expect({ shown, answer: JSON.parse(printed.join('')) }).toEqual({ shown: '', answer: { data: completed } })
  })

  test('waits for a backup that is already in progress', async () => {
    begins = () => new Response('{"error": "backup already in progress"}', { status: 409 })
    await berth(['backup', 'shop'], false, [running], [completed])
    expect(printed[0]).toBe('A backup is already in progress; waiting for it.')
    expect(printed[1]).toContain('Backup 20261115-090000F is completed')
    await expect(berth(['backup', 'shop', '--no-wait'], false)).rejects.toThrow('backup already in progress')
  })

  test('does not wait with --no-wait', async () => {
    await berth(['backup', 'shop', '--no-wait'], false, [running])
    expect(printed.join('')).toContain('is running. Check its progress with: berth postgres backups shop')
  })
})

test.each([
  [-1, '0 s'],
  [2.13, '2.1 s'],
  [9.96, '10 s'],
  [59, '59 s'],
  [90, '1.5 min'],
  [3600, '1 h'],
  [86_399, '24 h'],
  [172_800, '2 d'],
])('writes %d seconds as %s', (seconds, text) => {
  expect(formatSpan(seconds)).toBe(text)
})

test.each([
  ['pin', 'Backup 20261115-090000F is kept permanently.'],
  ['unpin', 'Backup 20261115-090000F is removed when the recovery window has passed it.'],
])('%s prints its effect', async (command, text) => {
  await berth([command, 'shop', completed.id], false)
  expect(asked.at(-1)).toBe(`PATCH /${id}/backups/${completed.id}`)
  expect(printed).toEqual([text])
})
