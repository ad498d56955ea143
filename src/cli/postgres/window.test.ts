import { Command } from 'commander'
import { afterEach, describe, expect, test, vi } from 'vitest'
import type { PostgresBackup } from '../api-types.ts'
import { addWindowCommand, drawWindow, formatNoWindow } from './window.ts'

const at = (clock: string) => `2026-11-15T${clock}Z`
const window = (earliest: string, latest: string) => ({ earliest: at(earliest), latest: at(latest) })

function backup(finished: string, changes: Partial<PostgresBackup> = {}): PostgresBackup {
  return {
    id: '20261115-090000F',
    status: 'completed',
    type: 'full',
    size_bytes: 44_040_192,
    started_at: at('09:00:00'),
    finished_at: at(finished),
    verified_at: at(finished),
    pinned: false,
    ...changes,
  }
}

/** Returns only the line that is drawn, without the times. */
function line(...args: Parameters<typeof drawWindow>): string {
  return drawWindow(...args).split('\n')[1]!
}

describe('the line', () => {
  test('is as wide as the terminal, with the times of its ends above', () => {
    expect(drawWindow([window('10:00:00', '11:00:00.5')], [backup('10:30:00')], 60)).toBe(
      ['2026-11-15 10:00:00 UTC              2026-11-15 11:00:00 UTC', `├${'─'.repeat(28)}●${'─'.repeat(29)}┤`].join(
        '\n',
      ),
    )
  })

  test('has the times above and below where there is no room for both', () => {
    expect(drawWindow([window('10:00:00', '11:00:00')], [], 30)).toBe(
      ['2026-11-15 10:00:00 UTC', `├${'─'.repeat(28)}┤`, '       2026-11-15 11:00:00 UTC'].join('\n'),
    )
  })

  test('leaves gaps where nothing can be restored', () => {
    const windows = [window('10:00:00', '10:30:00'), window('11:00:00', '12:00:00')]
    expect(line(windows, [backup('10:15:00'), backup('11:30:00')], 48)).toBe(
      '├─────●────┤    (gap)    ├──────────●──────────┤',
    )
  })

  test('shows a gap that is shorter than a column', () => {
    const windows = [window('00:00:00', '11:59:59'), window('12:00:00', '23:59:59')]
    expect(line(windows, [], 11)).toBe('├───┤ ├───┤')
  })

  test('marks backups at the edges of a window on its edges', () => {
    const backups = [backup('11:00:00'), backup('10:00:00')]
    expect(line([window('10:00:00', '11:00:00')], backups, 12)).toBe('●──────────●')
  })

  test('keeps a backup that was verified after the edge of its window at that edge', () => {
    const windows = [window('10:00:00', '10:30:00'), window('11:00:00', '12:00:00')]
    expect(line(windows, [backup('10:40:00'), backup('12:00:09')], 16)).toBe('├──●     ├─────●')
    expect(line([window('10:00:00', '11:00:00')], [backup('11:00:01')], 5)).toBe('├───●')
  })

  test('marks only backups that can be restored', () => {
    const backups = [backup('10:30:00', { status: 'failed' }), backup('', { status: 'running', finished_at: null })]
    expect(line([window('10:00:00', '11:00:00')], [...backups, backup('09:00:00')], 6)).toBe('├────┤')
  })

  test('draws a window of a single moment', () => {
    expect(line([window('10:00:00', '10:00:00')], [backup('10:00:00')], 6)).toBe('●────┤')
    expect(line([window('10:00:00', '10:00:00'), window('10:00:00', '10:00:00')], [], 7)).toBe('├┤   ├┤')
  })

  test.each([1, 2, 3, 4, 5, 6, 7])('keeps to %d columns, and to the newest windows that fit', (width) => {
    const windows = [window('10:00:00', '10:30:00'), window('10:31:00', '11:00:00'), window('11:10:00', '12:00:00')]
    const drawn = line(windows, [backup('12:00:00')], width)
    expect([...drawn]).toHaveLength(width)
    expect(drawn.at(-1)).toBe('●')
    expect(drawWindow(windows, [], width)).toContain(width < 5 ? (width < 3 ? '11:10' : '10:31') : '10:00')
  })
})

describe('without a window', () => {
  test.each([
    ['creating', [], 'it is creating'],
    ['ready', [], 'its first backup has not started yet'],
    ['ready', [backup('', { status: 'running' })], 'its backup 20261115-090000F is running'],
    [
      'ready',
      [backup('', { status: 'failed', failure: 'disk full' })],
      'its backup 20261115-090000F failed: disk full',
    ],
    ['ready', [backup('10:00:00')], 'its WAL archive does not extend past backup 20261115-090000F yet'],
  ] as const)('a %s cluster has a reason', (status, backups, why) => {
    const text = `Cluster shop cannot be restored to a point in time: ${why}.`
    expect(formatNoWindow({ name: 'shop', status }, [...backups])).toBe(text)
  })
})

describe('the command', () => {
  afterEach(() => vi.unstubAllGlobals())

  const id = '0123456789abcdef'
  const windows = [window('10:00:00', '10:30:00'), window('11:00:00', '12:00:00')]

  async function run(json: boolean, recovery_windows: object[], backups: PostgresBackup[]): Promise<string> {
    const cluster = { id, name: 'shop', status: 'ready', recovery_window: recovery_windows.at(-1), recovery_windows }
    vi.stubGlobal('fetch', async (url: string) => {
      const { pathname } = new URL(url)
      const data = pathname.endsWith('/backups') ? backups : pathname.endsWith(id) ? cluster : [cluster]
      return new Response(JSON.stringify({ data }), { headers: { date: 'Sun, 15 Nov 2026 12:00:02 GMT' } })
    })
    const program = new Command('berth')
    let printed = ''
    const print = (text: string) => (printed += text)
    addWindowCommand(program, {
      session: () => ({ url: 'http://platform', token: '' }),
      terminal: () => ({ json, colors: false, print, note: print }),
      progress: { columns: 50, write: () => {} },
    })
    await program.parseAsync(['window', 'shop'], { from: 'user' })
    return printed
  }

  test('names the gaps, the newest backup, and how long ago the window ended', async () => {
    const backups = [backup('11:00:01'), backup('10:00:01', { id: '20261115-100000F' })]
    const lines = (await run(false, windows, backups)).split('\n')
    expect(lines[1]).toHaveLength(50)
    expect(lines.slice(2)).toEqual([
      'Cannot be restored: 2026-11-15 10:30:00 UTC to 2026-11-15 11:00:00 UTC (30 min)',
      '● 2 backups, newest 20261115-090000F (42 MB, verified 1 h ago); the window ended 2 s ago',
    ])
  })

  test('reports a window that comes from backups of another cluster', async () => {
    const lines = (await run(false, windows.slice(1), [])).split('\n')
    expect(lines[2]).toBe('● no backup of this cluster yet; the window ended 2 s ago')
  })

  test('explains why there is no window', async () => {
    expect(await run(false, [], [])).toContain('its first backup has not started yet')
  })

  test('prints windows and backups with --json', async () => {
    const backups = [backup('11:00:01')]
    const data = { recovery_window: windows[1], recovery_windows: windows, backups }
    expect(JSON.parse(await run(true, windows, backups))).toEqual({ data })
  })
})
