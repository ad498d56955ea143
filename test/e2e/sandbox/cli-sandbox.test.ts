// The sandbox commands with the real launcher, a real platform, and a terminal where one is needed.
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, readFileSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { Berth, end } from '../../support/berth.ts'
import { Console } from '../../support/console.ts'
import { until } from '../../support/until.ts'

const launcher = new URL('../../../berth', import.meta.url).pathname
const berth = new Berth()
const here = mkdtempSync(join(tmpdir(), 'berth-cli-sandbox-'))
const children: ChildProcess[] = []
const consoles: Console[] = []

interface Result {
  code: number | null
  out: string
  err: string
}

function start(...args: string[]): ChildProcess {
  const child = spawn(launcher, ['sandbox', ...args], { env: berth.environment, cwd: here })
  children.push(child)
  return child
}

async function finish(child: ChildProcess, input: string | Buffer = ''): Promise<Result & { bytes: Buffer }> {
  child.stdin!.on('error', () => {}) // the process may exit without reading its input
  child.stdin!.end(input)
  const closed = once(child, 'close')
  const [out, err] = await Promise.all([child.stdout!.toArray(), child.stderr!.toArray()])
  const [code] = await closed
  const bytes = Buffer.concat(out)
  return { code, bytes, out: String(bytes), err: Buffer.concat(err).toString() }
}

async function sandbox(...args: string[]): Promise<Result> {
  const { code, out, err } = await finish(start(...args))
  return { code, out, err }
}

async function json(...args: string[]) {
  const { code, out, err } = await sandbox(...args, '--json')
  expect({ code, err }).toEqual({ code: 0, err: '' })
  return JSON.parse(out)
}

function openConsole(...args: string[]): Console {
  const opened = new Console(berth, ['sandbox', ...args], here)
  consoles.push(opened)
  return opened
}

beforeAll(async () => {
  await berth.up()
  expect((await sandbox('create', 'demo')).code).toBe(0)
})

afterEach(async () => {
  for (const opened of consoles.splice(0)) opened.close()
  for (const child of children.splice(0)) await end(child)
})

afterAll(async () => {
  await berth.destroy()
  rmSync(here, { recursive: true, force: true })
})

test('a sandbox is created, listed, shown, changed and destroyed', async () => {
  const created = await json('create', 'life', '--memory', '512', '--cpus', '0.5', '--label', 'a', '--env', 'X=b c')
  expect(created).toMatchObject({
    name: 'life',
    config: { ram_mb: 512, cpus: 0.5 },
    labels: ['a'],
    environment: { X: 'b c' },
  })
  const { sprites } = await json('list', '--prefix', 'li')
  expect(sprites.map(({ name }: { name: string }) => name)).toEqual(['life'])
  expect((await sandbox('list')).out).toMatch(/^life +cold +personal +private +a /m)
  expect((await sandbox('show', 'life')).out).toMatch(/^memory +512 MB$/m)
  expect(await sandbox('url', 'life', '--public')).toEqual({ code: 0, out: `${created.url}\n`, err: 'public\n' })
  expect(await json('url', 'life', '--private')).toMatchObject({ url_settings: { auth: 'sprite' } })
  expect(await sandbox('exec', 'life', '--', 'sh', '-c', 'echo $X')).toEqual({ code: 0, out: 'b c\n', err: '' })
  expect((await sandbox('restart', 'life')).code).toBe(0)
  expect(await sandbox('destroy', 'life')).toMatchObject({ code: 2, err: expect.stringContaining('use --yes') })
  expect(await sandbox('destroy', 'life', '-y')).toMatchObject({ code: 0, out: 'Destroyed sandbox life.\n' })
  expect(await sandbox('show', 'life')).toEqual({ code: 1, out: '', err: 'error: sandbox not found\n' })
})

describe('exec', () => {
  test('returns stdout, stderr and the exit code of a command separately', async () => {
    const script = 'echo out; echo err >&2; pwd; echo $A; exit 7'
    const done = await sandbox('exec', 'demo', '--dir', '/tmp', '--env', 'A=b=c', '--', 'sh', '-c', script)
    expect(done).toEqual({ code: 7, out: 'out\n/tmp\nb=c\n', err: 'err\n' })
    expect(await sandbox('exec', 'demo', '--', 'no-such-program')).toMatchObject({ code: 127, out: '' })
    expect(await sandbox('exec', 'nobody', '--', 'true')).toEqual({
      code: 1,
      out: '',
      err: 'error: sandbox not found\n',
    })
    expect((await sandbox('exec', 'demo')).code).toBe(2)
  })

  test('transfers binary data of any size in both directions', async () => {
    const data = randomBytes(8 * 1024 * 1024)
    const { code, bytes } = await finish(start('exec', 'demo', '--', 'cat'), data)
    expect(code).toBe(0)
    expect(createHash('sha256').update(bytes).digest()).toEqual(createHash('sha256').update(data).digest())
  })

  test('waits for a slow reader, and exits although its input stays open', async () => {
    const child = start('exec', 'demo', '--', 'sh', '-c', 'head -c 5000000 /dev/zero; echo end >&2')
    let err = ''
    child.stderr!.on('data', (data) => {
      err += data
    })
    const first = await once(child.stdout!, 'readable').then(() => child.stdout!.read())
    let length = first.length
    child.stdout!.on('data', (data) => {
      length += data.length
    })
    const [code] = await once(child, 'close')
    expect({ code, length, err }).toEqual({ code: 0, length: 5_000_000, err: 'end\n' })
  })

  test('forwards signals to the command', async () => {
    const script = 'trap "echo got it; exit 9" INT; echo ready; while :; do sleep 0.1; done'
    const child = start('exec', 'demo', '--', 'sh', '-c', script)
    const [ready] = await once(child.stdout!, 'data')
    expect(String(ready)).toBe('ready\n')
    child.kill('SIGINT')
    expect(await finish(child)).toMatchObject({ code: 9, out: 'got it\n' })

    const sleeper = start('exec', 'demo', '--', 'sh', '-c', 'echo ready; exec sleep 60')
    await once(sleeper.stdout!, 'data')
    sleeper.kill('SIGTERM')
    expect(await finish(sleeper)).toMatchObject({ code: 143 })
  })
})

describe('console', () => {
  test('provides a terminal with a login shell, resizing, Ctrl-C and the exit code', async () => {
    const console = openConsole('console', 'demo')
    await console.sees(/[#$] /)
    console.type('stty size; shopt -q login_shell && echo log"in"\r')
    await console.sees('30 100')
    await console.sees('login')
    console.terminal.resize(123, 45)
    console.type('until [ "$(stty size)" = "45 123" ]; do sleep 0.05; done; echo re"sized"\r')
    await console.sees('resized')
    console.type('sleep 60\r')
    await console.sees('sleep 60')
    console.type('\u0003')
    console.type('echo $((128 + 2)) $?\r')
    await console.sees('130 130')
    console.type('exit 5\r')
    expect(await console.exit()).toBe(5)
  })

  test('can be detached with Ctrl-\\, attached again, and ended', async () => {
    const first = openConsole('console', 'demo', '--', 'bash', '--norc')
    first.type('printf \'\\033[?25l\'; MARK=here; echo rea"dy"\r')
    await first.sees('ready')
    first.type('\u001c')
    await first.sees(/console demo --attach \d+/)
    expect(await first.exit()).toBe(0)
    const [, id] = /berth sandbox console demo --attach (\d+)/.exec(first.seen)!
    expect(first.seen).toContain('\u001b[?25h') // the cursor is visible again

    expect((await sandbox('sessions', 'demo')).out).toMatch(
      new RegExp(`^${id} +terminal .* /usr/bin/bash --norc$`, 'm'),
    )
    const second = openConsole('console', 'demo', '--attach', id!)
    second.type('echo still $MARK\r')
    await second.sees('still here')
    const killed = await sandbox('sessions', 'demo', '--kill', id!, '--signal', 'KILL')
    expect(killed).toMatchObject({ code: 0, out: `Session ${id} exited with code 137.\n` })
    expect(await second.exit()).toBe(137)
    const third = openConsole('console', 'demo', '--attach', id!)
    await third.sees(`session not found: ${id}`)
    expect(await third.exit()).toBe(1)
  })

  test('restores the terminal settings when it is terminated', async () => {
    const shell = openConsole('exec', '-it', 'demo', '--', 'cat')
    shell.type('hel"lo\r')
    await shell.sees(/hel"lo\r\nhel"lo/)
    process.kill(shell.commandPid, 'SIGTERM')
    expect(await shell.exit()).toBe(143)
  })

  test('fails without a terminal', async () => {
    expect(await sandbox('console', 'demo')).toMatchObject({
      code: 2,
      err: expect.stringContaining('needs a terminal'),
    })
  })
})

test('services can be defined, watched, stopped and deleted', async () => {
  const script = 'echo hello; echo oops >&2; exec sleep 1000'
  const put = await sandbox('services', 'put', 'demo', 'web', '--watch', '5s', '--env', 'A=b', '--', 'sh', '-c', script)
  expect(put).toMatchObject({ code: 0, err: 'oops\n' })
  expect(put.out).toMatch(/^hello\nService web is running \(pid \d+\)\.\n$/)
  expect((await sandbox('services', 'demo')).out).toMatch(/^web +running +\d+ /m)
  expect(await sandbox('logs', 'demo', 'web', '-n', '1')).toMatchObject({ code: 0 })
  expect(await sandbox('services', 'signal', 'demo', 'web', 'CONT')).toMatchObject({ code: 0 })

  const follower = start('logs', 'demo', 'web', '-f')
  let followed = ''
  follower.stdout!.on('data', (data) => {
    followed += data
  })
  await until(() => followed === 'hello\n')
  expect((await sandbox('services', 'restart', 'demo', 'web', '--watch', '200ms')).code).toBe(0)
  await until(() => followed === 'hello\nhello\n')

  const stopped = await sandbox('services', 'stop', 'demo', 'web')
  expect(stopped).toEqual({ code: 0, out: 'Stopped service web; it exited with code 143.\n', err: '' })
  expect(await json('services', 'show', 'demo', 'web')).toMatchObject({ env: { A: 'b' }, state: { status: 'stopped' } })
  expect((await sandbox('services', 'delete', 'demo', 'web')).code).toBe(0)
  const failed = await sandbox('services', 'put', 'demo', 'bad', '--watch', '20s', '--', 'sh', '-c', 'exit 3')
  expect(failed).toMatchObject({ code: 1, err: expect.stringContaining('service bad failed: exited with code 3') })
  expect((await sandbox('services', 'delete', 'demo', 'bad')).code).toBe(0)
})

describe('files', () => {
  test('can be uploaded and downloaded, also as directories and through pipes', async () => {
    const big = randomBytes(3_000_000)
    mkdirSync(join(here, 'project/deep/er'), { recursive: true })
    writeFileSync(join(here, 'project/deep/big.bin'), big)
    writeFileSync(join(here, 'project', `${'long'.repeat(40)}.txt`), 'long')
    writeFileSync(join(here, 'project/run.sh'), '#!/bin/sh\n', { mode: 0o755 })
    symlinkSync('deep/big.bin', join(here, 'project/link'))
    expect(await sandbox('files', 'put', 'demo', 'project', '/srv/project')).toMatchObject({ code: 0 })
    expect((await sandbox('files', 'put', 'demo', 'project/.', '/srv/project')).err).toContain('to /srv/project.')
    expect((await sandbox('files', 'put', 'demo', 'project', '/tmp')).err).toContain('to /tmp/project.')
    expect(await sandbox('files', 'get', 'demo', '/srv/project', 'copy')).toMatchObject({ code: 0 })
    expect(readFileSync(join(here, 'copy/deep/big.bin')).equals(big)).toBe(true)
    expect(readFileSync(join(here, `copy/${'long'.repeat(40)}.txt`), 'utf8')).toBe('long')
    expect(readlinkSync(join(here, 'copy/link'))).toBe('deep/big.bin')
    const { out } = await sandbox('files', 'demo', 'ls', '/srv/project')
    expect(out).toMatch(/^-rwxr-xr-x +0:0 +10 .* run\.sh$/m)

    expect((await finish(start('files', 'put', 'demo', '-', 'piped.bin'), big)).code).toBe(0)
    expect((await finish(start('files', 'get', 'demo', 'piped.bin', '-'))).bytes.equals(big)).toBe(true)
  })

  test('can be uploaded even if packing ends before the upload starts', async () => {
    mkdirSync(join(here, 'tiny'))
    writeFileSync(join(here, 'tiny/one.txt'), 'a word')
    expect(await sandbox('files', 'put', 'demo', 'tiny', '/srv/tiny')).toMatchObject({ code: 0 })
    expect((await sandbox('files', 'cat', 'demo', '/srv/tiny/one.txt')).out).toBe('a word')
  })

  test('can be renamed, copied, changed, created and deleted', async () => {
    expect((await finish(start('files', 'put', 'demo', '-', 'a.txt'), 'text')).code).toBe(0)
    for (const args of [
      ['mv', 'demo', 'a.txt', 'b.txt'],
      ['mkdir', 'demo', 'some/where'],
      ['cp', 'demo', 'b.txt', 'some/where/c.txt'],
      ['chmod', 'demo', '0600', 'b.txt'],
    ]) {
      expect(await sandbox('files', ...args)).toMatchObject({ code: 0 })
    }
    expect(await sandbox('files', 'cat', 'demo', 'some/where/c.txt')).toEqual({ code: 0, out: 'text', err: '' })
    expect((await json('files', 'ls', 'demo', 'b.txt')).entries).toMatchObject([{ mode: '0600', size: 4 }])
    expect(await sandbox('files', 'rm', 'demo', 'some')).toMatchObject({ code: 1 })
    expect(await sandbox('files', 'rm', '-r', 'demo', 'some', 'b.txt')).toMatchObject({ code: 0 })
    expect(await sandbox('files', 'get', 'demo', 'b.txt')).toMatchObject({
      code: 1,
      err: expect.stringContaining('no such file'),
    })
  })
})

test('checkpoints can be created, listed, restored and deleted', async () => {
  await finish(start('files', 'put', 'demo', '-', 'state.txt'), 'before')
  const made = await sandbox('checkpoint', 'demo', '-m', 'a good state')
  expect(made).toMatchObject({ code: 0, out: expect.stringMatching(/^Checkpoint v\d+ created\.\n$/) })
  const [, id] = /(v\d+)/.exec(made.out)!
  await finish(start('files', 'put', 'demo', '-', 'state.txt'), 'after')
  expect((await sandbox('checkpoints', 'demo')).out).toMatch(new RegExp(`^${id} .* a good state$`, 'm'))
  const restored = await sandbox('restore', 'demo', id!, '--yes')
  expect(restored).toMatchObject({ code: 0, out: `Restored to ${id}.\n` })
  expect(restored.err).toContain('The previous state is kept as auto-1')
  expect((await sandbox('files', 'cat', 'demo', 'state.txt')).out).toBe('before')
  expect(await sandbox('checkpoint-delete', 'demo', id!, '-y')).toMatchObject({ code: 0 })
})

test('a proxy forwards to ports inside, and reports ports without a listener', async () => {
  const echo =
    'use Socket; socket(S, 2, 1, 6); bind(S, sockaddr_in(7007, INADDR_LOOPBACK)); listen(S, 5); while (accept(C, S)) { sysread C, $x, 9; syswrite C, scalar reverse $x; close C }'
  expect((await sandbox('services', 'put', 'demo', 'echo', '--watch', '1ms', '--', 'perl', '-e', echo)).code).toBe(0)
  const listening = await sandbox(
    'exec',
    'demo',
    '--',
    'sh',
    '-c',
    'until grep -q :1B5F /proc/net/tcp; do sleep 0.05; done',
  )
  expect(listening.code).toBe(0)
  const proxy = start('proxy', 'demo', '0:7007', '0:7008', '--json')
  let out = ''
  let err = ''
  proxy.stdout!.on('data', (data) => {
    out += data
  })
  proxy.stderr!.on('data', (data) => {
    err += data
  })
  await until(() => out.trimEnd().endsWith(']'))
  const [there, nobody] = JSON.parse(out)
  const connection = connect(there.local, there.host)
  connection.write('hello')
  expect((await connection.toArray()).join('')).toBe('olleh')
  const refused = connect(nobody.local, nobody.host)
  refused.on('error', () => {})
  await once(refused, 'close')
  await until(() => err.includes('port 7008'))
})

test('the network policy of a sandbox can be shown and changed', async () => {
  expect((await sandbox('policy', 'demo', 'allow', 'example.com', '*.debian.org')).code).toBe(0)
  expect((await sandbox('policy', 'deny', 'demo', 'example.com')).out).toMatch(/^deny +example.com$/m)
  expect((await json('policy', 'show', 'demo')).rules).toEqual([
    { domain: '*.debian.org', action: 'allow' },
    { domain: 'example.com', action: 'deny' },
  ])
  expect((await sandbox('policy', 'reset', 'demo')).code).toBe(0)
})
