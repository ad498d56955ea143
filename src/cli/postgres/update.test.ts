import { Command } from 'commander'
import { afterEach, expect, test, vi } from 'vitest'
import { addUpdateCommand, parseRetention } from './update.ts'

afterEach(() => vi.unstubAllGlobals())

function withoutNulls(fields: Record<string, unknown>) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null))
}

async function berth(...args: string[]): Promise<{ bodies: unknown[]; printed: string[] }> {
  const bodies: unknown[] = []
  const printed: string[] = []
  vi.stubGlobal('fetch', async (_url: string, { method, body }: { method: string; body: string }) => {
    if (method === 'GET') return new Response(JSON.stringify({ data: [{ id: '0123456789abcdef', name: 'shop' }] }))
    bodies.push(JSON.parse(body))
    return new Response(
      JSON.stringify({
        data: { name: 'shop', maintenance_window: null, retention_days: 7, ...withoutNulls(JSON.parse(body)) },
      }),
    )
  })
  const program = new Command('berth')
  const print = (text: string) => printed.push(text)
  addUpdateCommand(program, {
    session: () => ({ url: 'http://platform', token: '' }),
    terminal: () => ({ json: false, colors: false, print, note: print }),
  })
  await program.parseAsync(['update', 'shop', ...args], { from: 'user' })
  return { bodies, printed }
}

test('changes the retention, also back to that of the platform', async () => {
  expect(await berth('--retention', '14d')).toEqual({
    bodies: [{ retention_days: 14 }],
    printed: ['Cluster shop keeps backups for 14 days.'],
  })
  expect((await berth('--retention', 'default')).bodies).toEqual([{ retention_days: null }])
  expect((await berth('--retention', '1')).printed).toEqual(['Cluster shop keeps backups for 1 day.'])
})

test('sets the maintenance window, and clears it', async () => {
  expect(await berth('--maintenance-window', 'Sun 03:00')).toEqual({
    bodies: [{ maintenance_window: 'sun 03:00' }],
    printed: ['Cluster shop is upgraded to newer minor versions on sun 03:00 UTC.'],
  })
  expect(await berth('--maintenance-window', 'none', '--retention', '3')).toEqual({
    bodies: [{ retention_days: 3, maintenance_window: null }],
    printed: ['Cluster shop keeps backups for 3 days.\nCluster shop has no maintenance window.'],
  })
})

test('says what is missing or wrong', async () => {
  await expect(berth()).rejects.toThrow('nothing to change; use --retention <days> or --maintenance-window <time>')
  for (const text of ['', '2w', '1.5d', '-1', 'never', '1e3']) {
    expect(() => parseRetention(text)).toThrow('use a number of days such as 14d, or default')
  }
})
