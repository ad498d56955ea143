// Commands with a terminal in machines.
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { Berth } from '../../support/berth.ts'
import { type Result, runCli } from '../../support/cli.ts'
import { destroy } from '../../support/client.ts'
import { Console } from '../../support/console.ts'
import { ExecSocket } from '../../support/exec.ts'
import { busyboxImage } from '../../support/image.ts'
import { attenuate, caveat } from '../../support/macaroon.ts'
import { pushImage, type Registry, startRegistry } from '../../support/registry.ts'
import { until } from '../../support/until.ts'

const berth = new Berth()
const consoles: Console[] = []
const script = 'trap "exit 0" INT TERM; while :; do sleep 0.05; done'
let registry: Registry
let id: string

const run = (...args: string[]): Promise<Result> => runCli(berth, args)

function openConsole(...args: string[]): Console {
  const opened = new Console(berth, ['machine', 'console', id, '-a', 'shop', ...args])
  consoles.push(opened)
  return opened
}

async function listCommands(): Promise<string> {
  return (await run('machine', 'ps', id, '-a', 'shop')).out
}

/** Connects without the CLI. */
function attempt(token: string, query: string) {
  return ExecSocket.attempt(`${berth.addresses.api}/v1/apps/shop/machines/${id}/exec?${query}`, token)
}

async function attemptStatus(token: string, query: string): Promise<number> {
  const opened = await attempt(token, query)
  if (!(opened instanceof ExecSocket)) return opened.status
  opened.socket.terminate()
  return 101
}

beforeAll(async () => {
  registry = await startRegistry()
  const { reference } = await pushImage(registry, { repository: 'box', ...busyboxImage({ Cmd: ['sh', '-c', script] }) })
  await berth.up()
  await run('apps', 'create', 'shop')
  const made = await run('machine', 'run', reference, '-a', 'shop', '--env', 'COLOUR=blue')
  id = /^Machine ([0-9a-f]{14}) /m.exec(made.out)?.[1] ?? `not started: ${made.err}`
}, 120_000)

afterEach(() => {
  for (const opened of consoles.splice(0)) opened.close()
})

afterAll(async () => {
  await registry?.close()
  await destroy(berth)
})

test('a console has a terminal with resizing and Ctrl-C, and exits with the exit code', async () => {
  const opened = openConsole()
  await opened.sees(/[#$] /)
  opened.type('stty size; echo $COLOUR; tty\r')
  await opened.sees('30 100')
  await opened.sees('blue')
  await opened.sees(/\/dev\/pts\/\d/)
  opened.terminal.resize(123, 45)
  opened.type('until [ "$(stty size)" = "45 123" ]; do sleep 0.05; done; echo re"sized"\r')
  await opened.sees('resized')
  opened.type('sleep 4710\r')
  await until(async () => (await listCommands()).includes('sleep 4710'))
  opened.type('\u0003')
  opened.type('echo $((128 + 2)) $?\r')
  await opened.sees('130 130')
  opened.type('exit 5\r')
  expect(await opened.exit()).toBe(5)
})

test('a console runs the given command with variables and a directory', async () => {
  const opened = openConsole('--env', 'SIZE=big', '--dir', '/bin', '--', 'sh', '-c', 'echo $COLOUR $SIZE $PWD; exit 3')
  await opened.sees('blue big /bin')
  expect(await opened.exit()).toBe(3)
})

test('a command ends soon after its client is gone', async () => {
  const opened = openConsole('--', 'sleep', '4711')
  await until(async () => (await listCommands()).includes('sleep 4711'))
  process.kill(opened.commandPid, 'SIGKILL')
  await until(async () => !(await listCommands()).includes('sleep 4711'))
})

test('a command ends soon after the control plane was killed', async () => {
  openConsole('--', 'sleep', '4712')
  await until(async () => (await listCommands()).includes('sleep 4712'))
  const platform = berth.children.at(-1)!
  platform.kill('SIGKILL')
  await berth.up()
  await until(async () => !(await listCommands()).includes('sleep 4712'))
})

test('only tokens that may control the machine open a session', async () => {
  expect(await attemptStatus('nonsense', 'cmd=true')).toBe(401)
  expect(await attemptStatus(berth.token, 'cmd=true')).toBe(101)
  const issued = await berth.call('POST', '/v1/tokens', { kind: 'read', org_slug: 'personal' })
  expect(await attemptStatus(issued.body.token, 'cmd=true')).toBe(403)
  const other = await berth.call('POST', '/v1/orgs', { name: 'Other', slug: 'other' })
  expect(other.status).toBe(201)
  const foreign = await berth.call('POST', '/v1/tokens', { kind: 'org', org_slug: 'other' })
  expect(await attemptStatus(foreign.body.token, 'cmd=true')).toBe(403)
})

test('a token that is limited to commands runs only those, with nothing that changes what they mean', async () => {
  const issued = await berth.call('POST', '/v1/tokens', { kind: 'org', org_slug: 'personal', format: 'fm2' })
  const token = attenuate(issued.body.token, caveat.commands({ args: ['true'], exact: true }))
  expect(await attemptStatus(token, 'cmd=true')).toBe(101)
  for (const query of [
    'cmd=id',
    'cmd=true&cmd=x',
    'cmd=true&path=/bin/id',
    'cmd=true&env=PATH=/tmp',
    'cmd=true&dir=/tmp',
  ])
    expect([query, await attemptStatus(token, query)]).toEqual([query, 403])
})

test('a console needs a terminal, and a request needs a command', async () => {
  expect(await run('machine', 'console', id, '-a', 'shop')).toMatchObject({
    code: 2,
    err: expect.stringContaining('needs a terminal'),
  })
  expect(await attempt(berth.token, '')).toMatchObject({ status: 400 })
})

test('a stop of the machine ends its consoles, and a stopped machine has none', async () => {
  const opened = openConsole('--', 'sleep', '4713')
  await until(async () => (await listCommands()).includes('sleep 4713'))
  expect((await run('machine', 'stop', id, '-a', 'shop')).code).toBe(0)
  expect(await opened.exit()).toBe(137)
  expect(await attempt(berth.token, 'cmd=true')).toMatchObject({ status: 412 })
})
