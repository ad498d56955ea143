import { Command } from 'commander'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { Quotas } from '../api-types.ts'
import { addQuotaCommands, parseChange } from './quota.ts'

const acme: Quotas = {
  organization: 'acme',
  quotas: [
    { name: 'clusters', limit: 20, used: 3, is_default: true, description: 'Postgres clusters' },
    { name: 'sandboxes', limit: null, used: 0, is_default: false, description: 'sandboxes' },
  ],
}

let asked: string[]
let printed: string[]

beforeEach(() => {
  asked = []
  printed = []
})

afterEach(() => vi.unstubAllGlobals())

async function berth(args: string[], json = false): Promise<void> {
  vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
    asked.push([method, url.replace('http://platform', ''), ...(body ? [body] : [])].join(' '))
    return new Response(JSON.stringify(url.endsWith('/v1/quotas') ? { organizations: [acme] } : acme))
  })
  const program = new Command('berth')
  const print = (text: string) => printed.push(text)
  addQuotaCommands(program, {
    session: () => ({ url: 'http://platform', token: '' }),
    terminal: () => ({ json, colors: false, print, note: print }),
  })
  await program.parseAsync(args, { from: 'user' })
}

test('quotas show prints usage and limit side by side', async () => {
  await berth(['quotas', 'show', 'acme'])
  expect(asked).toEqual(['GET /v1/orgs/acme/quotas'])
  expect(printed.join('\n')).toBe(
    [
      'QUOTA      USED  LIMIT      DEFAULT  COUNTS',
      'clusters   3     20         yes      Postgres clusters',
      'sandboxes  0     unlimited  no       sandboxes',
    ].join('\n'),
  )
})

test('quotas list prints what is used, and everything with --all', async () => {
  await berth(['quota', 'list'])
  expect(printed.join('\n')).toBe('ORG   QUOTA     USED  LIMIT  DEFAULT\nacme  clusters  3     20     yes')
  printed = []
  await berth(['quotas', 'list', '--all'])
  expect(printed.join('\n').split('\n')).toHaveLength(3)
})

test('quotas set sends numbers and words, and --json prints the answer', async () => {
  await berth(['quotas', 'set', 'acme', 'clusters=50', 'sandboxes=unlimited'], true)
  expect(asked).toEqual(['PATCH /v1/orgs/acme/quotas {"clusters":50,"sandboxes":"unlimited"}'])
  expect(JSON.parse(printed.join(''))).toEqual(acme)
})

test.each(['clusters', 'clusters=', '=5', 'clusters=-1', 'clusters=5 0', 'clusters=5=6'])('rejects %s', (text) => {
  expect(() => parseChange(text)).toThrow('quota=limit')
})
