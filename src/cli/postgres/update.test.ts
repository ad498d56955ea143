import { Command } from 'commander'
import { afterEach, expect, test, vi } from 'vitest'
import { addUpdateCommand, parseRetention } from './update.ts'

afterEach(() => vi.unstubAllGlobals())

async function berth(...args: string[]): Promise<{ bodies: unknown[]; printed: string[] }> {
  const bodies: unknown[] = []
  const printed: string[] = []
  vi.stubGlobal('fetch', async (_url: string, { method, body }: { method: string; body: string }) => {
    if (method === 'GET') return new Response(JSON.stringify({ data: [{ id: '0123456789abcdef', name: 'shop' }] }))
    bodies.push(JSON.parse(body))
    return new Response(
      JSON.stringify({ data: { name: 'shop', retention_days: JSON.parse(body).retention_days ?? 7 } }),
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

test('says what is missing or wrong', async () => {
  await expect(berth()).rejects.toThrow('nothing to change; use --retention <days>')
  for (const text of ['', '2w', '1.5d', '-1', 'never', '1e3']) {
    expect(() => parseRetention(text)).toThrow('use a number of days such as 14d, or default')
  }
})
