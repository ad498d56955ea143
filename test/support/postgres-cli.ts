// Runs `berth postgres` commands against a platform whose answers the test provides.
import { Command } from 'commander'
import { afterEach, beforeEach, vi } from 'vitest'
import { addPostgresCommands } from '../../src/cli/postgres/commands.ts'
import type { PsqlTarget } from '../../src/cli/postgres/connect.ts'

export type Answer = [status: number, body: object]

export let asked: string[]
export let bodies: unknown[]
export let printed: string[]
export let shown = ''
export let ran: [PsqlTarget, string[]][]
let answers: Answer[]
let psqlCode: number

beforeEach(() => {
  asked = []
  bodies = []
  printed = []
  shown = ''
  ran = []
  psqlCode = 0
  vi.stubGlobal('fetch', async (url: string, { method, body }: { method: string; body?: string }) => {
    asked.push(`${method} ${url.replace('http://platform/v1', '')}`)
    if (body) bodies.push(JSON.parse(body))
    const [status, answer] = answers.shift() ?? [500, { error: 'not expected' }]
    return new Response(status === 204 ? null : JSON.stringify(answer), { status })
  })
})

afterEach(() => vi.unstubAllGlobals())

export async function berth(args: string[], json: boolean, ...given: Answer[]): Promise<void> {
  answers = given
  const program = new Command('berth').exitOverride().configureOutput({ writeErr: () => {} })
  const print = (text: string) => printed.push(text)
  addPostgresCommands(program, {
    session: () => ({ url: 'http://platform', token: 'berth_x' }),
    terminal: () => ({ json, colors: false, print, note: print }),
    progress: { write: (text) => (shown += text) },
    runPsql: async (target, psqlArguments) => {
      ran.push([target, psqlArguments])
      return psqlCode
    },
  })
  await program.parseAsync(['pg', ...args], { from: 'user' })
}

export const id = '0123456789abcdef'

export const summary = { id, name: 'shop', status: 'ready', region: 'local', plan: 'basic', attached_apps: [] }

export function cluster(changes: object = {}) {
  return {
    ...summary,
    organization: { name: 'Personal', slug: 'personal' },
    pg_major_version: '17',
    cpu_kind: 'shared',
    cpus: 2,
    memory_mb: 1024,
    disk_size_gb: 10,
    replicas: 1,
    postgis_enabled: false,
    pool_mode: 'session',
    created_at: '2026-01-02T03:04:05.678Z',
    storage_provisioned_bytes: null,
    storage_used_bytes: null,
    endpoints: { primary: { direct: { host: 'db', port: 15_000 }, pooler: { host: 'db', port: 15_001 } } },
    health: { status: 'ok', reason: '', since: '2026-01-02T03:04:06.000Z' },
    ...changes,
  }
}

export const ok = (data: unknown): Answer => [200, { data }]
export const listed = (...clusters: object[]): Answer => ok(clusters)
export const starting = (status: string) => cluster({ status, endpoints: undefined, health: undefined })

export function exitPsqlWith(code: number): void {
  psqlCode = code
}
