import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { PassThrough, Readable } from 'node:stream'
import { Command } from 'commander'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { NetworkPolicy } from '../api-types.ts'
import { sanitizeOutput } from '../output.ts'
import { readLines } from '../stream.ts'
import { addSandboxCommands } from './commands.ts'
import { formatMode, parseOwner } from './file.ts'
import { planCopy } from './file-copy.ts'
import type { Streams } from './find.ts'
import { withRules } from './policy.ts'
import { parsePortPair } from './proxy.ts'

type Answer = [status: number, body: object | string]

let server: Server
let asked: { call: string; body: unknown }[]
let answers: Answer[]
let printed: string[]
let noted: string[]
let written: { output: PassThrough; errors: PassThrough }

beforeEach(async () => {
  asked = []
  printed = []
  noted = []
  written = { output: new PassThrough(), errors: new PassThrough() }
  server = createServer(async (incoming, outgoing) => {
    const text = (await incoming.toArray()).join('')
    asked.push({ call: `${incoming.method} ${incoming.url}`, body: text === '' ? undefined : JSON.parse(text) })
    const [status, body] = answers.shift() ?? [500, { error: 'not expected' }]
    outgoing.writeHead(status).end(typeof body === 'string' ? body : JSON.stringify(body))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})

afterEach(() => {
  server.closeAllConnections()
  server.close()
})

async function berth(args: string[], json: boolean, ...given: Answer[]): Promise<void> {
  answers = given
  const program = new Command('berth').exitOverride().configureOutput({ writeErr: () => {} })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  addSandboxCommands(program, {
    session: () => ({ url, token: 'berth_x' }),
    terminal: () => ({
      json,
      colors: false,
      print: (text) => printed.push(text),
      note: (text) => noted.push(text),
    }),
    streams: { input: new PassThrough(), ...written } as Streams,
    setExitCode: () => {},
  })
  await program.parseAsync(['sandbox', ...args], { from: 'user' })
}

const events = (...lines: object[]): Answer => [200, lines.map((line) => `${JSON.stringify(line)}\n`).join('')]

const demo = {
  id: '1',
  name: 'demo',
  organization: 'personal',
  status: 'cold',
  url: 'http://demo.sandbox.localhost:1/',
  url_settings: { auth: 'sprite', private_access: 'admins' },
  config: { ram_mb: 1, cpus: 1, region: 'local', storage_gb: 1 },
  environment: {},
  labels: [],
  isolation: { kind: 'bubblewrap', network: 'own' },
  created_at: '2026-01-02T03:04:05Z',
}

describe('sandboxes', () => {
  test('are created with only the given options', async () => {
    await berth(['create', 'demo', '--cpus', '0.5', '--env', 'A=b=c', '--env', 'D=', '--public'], true, [201, demo])
    expect(asked).toEqual([
      {
        call: 'POST /v1/sandboxes',
        body: {
          name: 'demo',
          config: { cpus: 0.5 },
          environment: { A: 'b=c', D: '' },
          url_settings: { auth: 'public' },
        },
      },
    ])
    await expect(berth(['create', 'demo', '--env', 'nothing'], true)).rejects.toThrow('NAME=value, not "nothing"')
    await expect(berth(['create', 'demo', '--cpus', 'many'], true)).rejects.toThrow('Write a number')
  })

  test('warn when they are not isolated', async () => {
    const open = { ...demo, isolation: { kind: 'none', network: 'host', gap: 'nothing is isolated' } }
    await berth(['create', 'demo'], false, [201, open])
    expect(noted).toEqual(['warning: nothing is isolated'])
  })

  test('are listed across all pages', async () => {
    const page = (name: string, next: string | null): Answer => [
      200,
      { sprites: [{ ...demo, name }], has_more: next !== null, next_continuation_token: next },
    ]
    await berth(['list', '--org', 'acme'], true, page('a', 't/1'), page('b', null))
    expect(asked.map(({ call }) => call)).toEqual([
      'GET /v1/sandboxes?org_slug=acme',
      'GET /v1/sandboxes?org_slug=acme&continuation_token=t%2F1',
    ])
    expect(JSON.parse(printed[0]!).sprites).toMatchObject([{ name: 'a' }, { name: 'b' }])
  })

  test('are watched without printing keep-alive messages', async () => {
    const change = { name: 'demo', status: 'running', timestamp: '2026-01-02T03:04:05.123456Z' }
    const stream = events(change, { type: 'heartbeat', timestamp: '2026-01-02T03:04:06Z' })
    await berth(['list', '--watch'], false, stream)
    expect(printed).toEqual(['2026-01-02T03:04:05Z  running   demo'])
  })

  test('are not destroyed without confirmation', async () => {
    await expect(berth(['destroy', 'demo'], false, [200, demo])).rejects.toThrow('use --yes')
    expect(asked).toHaveLength(1)
  })
})

describe('services', () => {
  const service = { name: 'web', cmd: 'x', args: [], needs: [], state: { name: 'web', status: 'running', pid: 9 } }

  test('are defined with everything that was given', async () => {
    const put = ['services', 'put', 'demo', 'web', '--http-port', '80', '--needs', 'a', '--needs', 'b', '--dir', '/srv']
    const health = ['--health-command', 'test -e up', '--health-interval', '1s']
    await berth([...put, ...health, '--', 'python3', '-m', 'http'], false, events({ type: 'started' }), [200, service])
    expect(asked[0]).toEqual({
      call: 'PUT /v1/sandboxes/demo/services/web?duration=2s',
      body: {
        cmd: 'python3',
        args: ['-m', 'http'],
        needs: ['a', 'b'],
        dir: '/srv',
        http_port: 80,
        health: { command: ['sh', '-c', 'test -e up'], interval: '1s' },
      },
    })
    expect(printed).toEqual(['Service web is running (pid 9).'])
  })

  test('have their output printed to the matching stream', async () => {
    const lines = events({ type: 'stdout', data: 'o\n' }, { type: 'stderr', data: 'e\n' }, { type: 'complete' })
    await berth(['logs', 'demo', 'web', '-n', '5', '-f'], false, lines)
    expect(asked[0]?.call).toBe('GET /v1/sandboxes/demo/services/web/logs?lines=5&duration=24h')
    expect([String(written.output.read()), String(written.errors.read())]).toEqual(['o\n', 'e\n'])
  })

  test('fail the command when they fail', async () => {
    const start = berth(['services', 'start', 'demo', 'web'], false, events({ type: 'exit', exit_code: 3 }), [
      200,
      service,
    ])
    await expect(start).rejects.toThrow('service web failed: exited with code 3')
  })

  test('are listed with the name of the sandbox alone', async () => {
    await berth(['services', 'demo'], false, [200, [service]])
    expect(printed[0]).toMatch(/^web +running +9 /m)
  })
})

describe('checkpoints', () => {
  test('are followed to their end, and fail with their reason', async () => {
    const info = { type: 'info', data: 'Creating checkpoint v1' }
    await berth(
      ['checkpoint', 'demo', '-m', 'x'],
      false,
      events(info, { type: 'complete', data: 'Checkpoint v1 created' }),
    )
    expect(asked[0]?.body).toEqual({ comment: 'x' })
    expect(printed).toEqual(['Checkpoint v1 created.'])
    const failing = berth(['checkpoint', 'demo'], false, events(info, { type: 'error', error: 'the disk is full' }))
    await expect(failing).rejects.toThrow('the disk is full')
    await expect(berth(['checkpoint', 'demo'], false, events(info))).rejects.toThrow('the connection was lost')
  })
})

describe('commands that take the sandbox first', () => {
  const list: Answer = [200, { path: '/', entries: [], count: 0 }]

  test('accept both orders', async () => {
    await berth(['files', 'ls', 'demo', '-r', '/etc'], false, list)
    await berth(['files', 'demo', 'ls', '-r', '/etc'], false, list)
    expect(asked[1]).toEqual(asked[0])
    expect(asked[0]?.call).toBe('GET /v1/sandboxes/demo/fs/list?path=%2Fetc&workingDir=%2Fhome%2Fsprite&recursive=true')
  })

  test('list the possible commands', async () => {
    await expect(berth(['files', 'demo', 'frob'], false)).rejects.toThrow('unknown command "frob"; use one of ls, cat')
    await expect(berth(['policy'], false)).rejects.toThrow('name one of the commands show')
    await expect(berth(['files', 'demo', 'ls', '--frob'], false)).rejects.toThrow("unknown option '--frob'")
  })
})

describe('helpers', () => {
  test('read ports', () => {
    expect(parsePortPair('8080')).toEqual({ local: 8080, remote: 8080 })
    expect(parsePortPair('0:80')).toEqual({ local: 0, remote: 80 })
    for (const odd of ['', 'x', '0', '70000', '1:2:3', '80:'])
      expect(() => parsePortPair(odd)).toThrow('must be a port')
  })

  test('plan copies as cp does', () => {
    expect(planCopy(undefined, 'a/b', '/x')).toEqual({ path: 'b' })
    expect(planCopy('to/', 'a/b/', '/x')).toEqual({ path: 'to/b' })
    expect(planCopy('to', 'b', '/x')).toEqual({ path: 'to', nameInDirectory: 'b' })
    expect(planCopy(undefined, '..', '/x/y')).toEqual({ path: 'x' })
    expect(planCopy('to', 'a/.', '/x')).toEqual({ path: 'to' })
    expect(planCopy(undefined, '/', '/x')).toEqual({ path: '.' })
  })

  test('write permissions as ls does', () => {
    expect(formatMode({ type: 'file', mode: '0644' })).toBe('-rw-r--r--')
    expect(formatMode({ type: 'directory', mode: '1777' })).toBe('drwxrwxrwt')
    expect(formatMode({ type: 'file', mode: '6744' })).toBe('-rwsr-Sr--')
  })

  test('read owners', () => {
    expect(parseOwner('www-data:33')).toEqual({ uid: 'www-data', gid: 33 })
    expect(parseOwner('0')).toEqual({ uid: 0 })
    expect(parseOwner(':staff')).toEqual({ gid: 'staff' })
  })

  test('replace rules for the same domain', () => {
    const rules: NetworkPolicy['rules'] = [{ domain: 'a', action: 'deny' }, { include: 'defaults' }]
    expect(withRules(rules, 'allow', ['a', 'defaults'])).toEqual([
      { domain: 'a', action: 'allow' },
      { include: 'defaults' },
    ])
    expect(withRules(rules, 'deny', ['b'])).toEqual([...rules, { domain: 'b', action: 'deny' }])
    expect(withRules([], 'deny', ['b'])).toEqual([
      { domain: '*', action: 'allow' },
      { domain: 'b', action: 'deny' },
    ])
    expect(withRules([], 'deny', ['*'])).toEqual([{ domain: '*', action: 'deny' }])
  })

  test('keep line breaks and colours of a log and remove other control characters', () => {
    expect(sanitizeOutput('a\tb\n')).toBe('a\tb\n')
    expect(sanitizeOutput('a\u001b[2Jb\u0007\r\n')).toBe('a\u{fffd}[2Jb\u{fffd}\n')
    expect(sanitizeOutput('\u001b[31mred\n')).toBe('\u001b[31mred\u001b[0m\n')
  })

  test('split lines only at line feeds', async () => {
    async function* pieces() {
      for (const piece of ['{"a":"ü\u2028', '"}\n{"b"', ':1}\n\n{"c":2}']) yield Buffer.from(piece)
    }
    const bytes = Buffer.concat(await Readable.from(pieces()).toArray())
    async function* single() {
      for (const byte of bytes) yield Buffer.from([byte])
    }
    const lines = ['{"a":"ü\u2028"}', '{"b":1}', '', '{"c":2}']
    expect(await Readable.from(readLines(pieces())).toArray()).toEqual(lines)
    expect(await Readable.from(readLines(single())).toArray()).toEqual(lines)
  })
})
