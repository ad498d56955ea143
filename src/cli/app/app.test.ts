import { Command } from 'commander'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { addAppCommands } from './app.ts'

type Answer = [status: number, body: object]

let asked: string[]
let printed: string[]
let answers: Answer[]

beforeEach(() => {
  asked = []
  printed = []
  vi.stubGlobal('fetch', async (url: string, { method }: { method: string }) => {
    asked.push(`${method} ${url.replace('http://platform', '')}`)
    const [status, body] = answers.shift() ?? [500, { error: 'not expected' }]
    return new Response(JSON.stringify(body), { status })
  })
})

afterEach(() => vi.unstubAllGlobals())

async function berth(args: string[], json: boolean, ...given: Answer[]): Promise<void> {
  answers = given
  const program = new Command('berth').exitOverride()
  const print = (text: string) => printed.push(text)
  addAppCommands(program, {
    session: () => ({ url: 'http://platform', token: 'berth_x' }),
    terminal: () => ({ json, colors: false, print, note: print }),
    progress: { write: () => {} },
  })
  await program.parseAsync(args, { from: 'user' })
}

const app = (name: string, id = name) => ({
  id,
  name,
  status: 'pending',
  network: 'default',
  machine_count: 0,
  volume_count: 0,
  organization: { name: 'Personal', slug: 'personal' },
})

test('follows pages and shows them as one', async () => {
  const first: Answer = [200, { total_apps: 2, apps: [app('a')], next_cursor: 'c/1' }]
  const second: Answer = [200, { total_apps: 2, apps: [app('b')] }]
  await berth(['apps', 'list', '--org', 'acme'], true, first, second)
  expect(asked).toEqual(['GET /v1/apps?org_slug=acme&limit=1000', 'GET /v1/apps?org_slug=acme&limit=1000&cursor=c%2F1'])
  expect(JSON.parse(printed.join(''))).toEqual({ total_apps: 2, apps: [app('a'), app('b')] })
})

test('shows the URL of an app once it has an address', async () => {
  const show = ['apps', 'show', 'a']
  await berth(show, false, [200, app('a')], [200, { ips: [{ type: 'private_v6' }] }])
  expect(printed.join()).toContain('url           none; "berth ips allocate-v4 --shared" allocates an address')
  const url = 'http://a.example:4282/'
  const shared: Answer = [200, { ips: [{ type: 'shared_v4' }] }]
  await berth(show, false, [200, app('a')], shared, [200, { data: { app: { appUrl: url } } }], [200, []])
  expect(printed.at(-1)).toContain(`url           ${url}`)
  await berth(show, true, [200, app('a')])
  expect(JSON.parse(printed.at(-1)!)).toEqual(app('a'))
})

test('waits until a destroyed app is gone', async () => {
  const there: Answer = [200, app('a')]
  await berth(['apps', 'destroy', 'a', '--force', '--yes'], false, there, [202, {}], there, [404, { error: 'gone' }])
  expect(asked).toEqual(['GET /v1/apps/a', 'DELETE /v1/apps/a?force=true', 'GET /v1/apps/a', 'GET /v1/apps/a'])
  expect(printed).toEqual(['Destroyed app a.'])
})

test('treats an app with the same name and another id as proof of the deletion', async () => {
  await berth(['apps', 'destroy', 'a', '-y'], false, [200, app('a', 'old')], [202, {}], [200, app('a', 'new')])
  expect(printed).toEqual(['Destroyed app a.'])
})

test('does not destroy anything without confirmation', async () => {
  await expect(berth(['apps', 'destroy', 'a'], false, [200, app('a')])).rejects.toThrow('use --yes')
  expect(asked).toEqual(['GET /v1/apps/a'])
})
