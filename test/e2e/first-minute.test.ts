// What a person sees who starts the platform at a terminal, and what a program sees.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { type IPty, spawn as spawnOnTerminal } from '@lydell/node-pty'
import { afterEach, describe, expect, test } from 'vitest'
import { Berth, kill } from '../support/berth.ts'
import { until } from '../support/until.ts'

const launcher = new URL('../../berth', import.meta.url).pathname
const started: Berth[] = []
const terminals: IPty[] = []
const servers: Server[] = []

function newBerth(environment: Record<string, string> = {}): Berth {
  const berth = new Berth(environment)
  started.push(berth)
  return berth
}

afterEach(async () => {
  for (const terminal of terminals.splice(0)) terminal.kill('SIGKILL')
  for (const server of servers.splice(0)) server.close()
  for (const berth of started.splice(0)) await berth.destroy()
})

interface Screen {
  terminal: IPty
  lines(): string[]
  code(): number | undefined
}

function openTerminal(berth: Berth, ...args: string[]): Screen {
  const terminal = spawnOnTerminal(launcher, args, { cols: 200, rows: 50, env: berth.environment })
  terminals.push(terminal)
  let seen = ''
  let code: number | undefined
  terminal.onData((data) => {
    seen += data
  })
  terminal.onExit(({ exitCode }) => {
    code = exitCode
  })
  return { terminal, lines: () => seen.split('\r\n'), code: () => code }
}

function listControlProcesses(berth: Berth): number[] {
  const directory = `${berth.home}/run/control`
  return existsSync(directory) ? readdirSync(directory).map(Number) : []
}

function treePid(berth: Berth): number {
  return Number(execFileSync('pgrep', ['-f', `s6-svscan .*${berth.home}/tree`]))
}

const steps = [
  'Starting the supervision tree ...',
  'Preparing PostgreSQL 17 ...',
  'Starting the state database ...',
  'Updating the schema of the state database ...',
  'Starting the edge ...',
  'Opening the APIs ...',
]

describe('at a terminal, "berth up"', () => {
  test('prints a line per step, the addresses and three things to try, and then only warnings', async () => {
    const berth = newBerth()
    const screen = openTerminal(berth, 'up')
    await until(() => screen.lines().some((line) => line.includes('./berth up --detach')), 120)
    const lines = screen.lines()
    const ready = lines.findIndex((line) => /^Berth \S+ is ready after [\d.]+ s\.$/.test(line))
    expect(lines.slice(0, ready).filter((line) => line !== 'Compiling the code ...')).toEqual([...steps, ''])
    const rest = lines.slice(ready).join('\n')
    expect(rest).toContain(berth.addresses.api)
    expect(rest).toContain(berth.addresses.sandbox)
    expect(rest).toContain(`.berth.localhost:${new URL(berth.addresses.edge).port}/`)
    expect(rest).toContain(`${berth.home}/token`)
    expect(rest).toContain(`export BERTH_HOME=${berth.home}`)
    for (const command of ['postgres create shop', 'sandbox create demo', 'deploy -a web --image'])
      expect(rest).toContain(`./berth ${command}`)
    await checkQuiet(berth, screen)
  })

  /** Requests are in the log only, and a warning is one plain line. */
  async function checkQuiet(berth: Berth, screen: Screen): Promise<void> {
    await berth.ok('GET', '/v1/orgs')
    const log = () => readFileSync(`${berth.home}/log/control-plane.log`, 'utf8')
    await until(() => log().includes('"path":"/v1/orgs"'))
    process.kill(treePid(berth), 'SIGKILL')
    const warning = /^\d\d:\d\d:\d\dZ warning: supervision tree exited; restarted it$/
    await until(() => screen.lines().some((line) => warning.test(line)), 60)
    expect(screen.lines().join('\n')).not.toContain('/v1/orgs')
    await until(() => log().includes('"msg":"supervision tree exited; restarted it"'))
    screen.terminal.write('\u0003')
    await until(() => screen.code() !== undefined, 60)
    expect(screen.code()).toBe(0)
    // The terminal shows ^C in front of it.
    expect(screen.lines().join('\n')).toContain('Stopping the control plane; workloads keep running ...\n')
    expect(screen.lines().join('\n')).not.toContain('{"level"')
  }

  test('logs JSON with --json', async () => {
    const berth = newBerth()
    const screen = openTerminal(berth, 'up', '--json')
    const isReady = (line: string) => line.startsWith('{') && JSON.parse(line).msg === 'control plane is ready'
    await until(() => screen.lines().slice(0, -1).some(isReady), 120)
  })
})

test('into a pipe, "berth up" prints nothing but JSON', async () => {
  const berth = newBerth()
  await berth.up()
  await until(() => berth.output.endsWith('\n'))
  for (const line of berth.output.trimEnd().split('\n')) expect(JSON.parse(line)).toMatchObject({ level: 30 })
})

describe('"berth up --detach"', () => {
  test('returns when the API answers, does nothing when it runs, and is stopped by "berth down"', async () => {
    const berth = newBerth()
    const { stdout } = await berth.cli('up', '--detach')
    expect(stdout).toContain('is ready after')
    expect(stdout).toContain(berth.addresses.api)
    await berth.ok('GET', '/v1/orgs')
    expect((await berth.cli('up', '--detach')).stdout).toContain('Berth runs already.')
    expect(listControlProcesses(berth)).toHaveLength(1)
    expect(readFileSync(`${berth.home}/log/control-plane.log`, 'utf8')).toContain('"msg":"control plane is ready"')
    await berth.cli('down')
    expect(listControlProcesses(berth)).toEqual([])
  })

  test('starts one control plane when it is called twice at once', async () => {
    const berth = newBerth()
    const reports = await Promise.all([1, 2].map(() => berth.cli('up', '--detach', '--json')))
    const parsed = reports.map(({ stdout }) => JSON.parse(stdout))
    expect(parsed.map((report) => report.started).sort()).toEqual([false, true])
    expect(parsed[0].api).toBe(parsed[1].api)
    expect(listControlProcesses(berth)).toHaveLength(1)
  })

  test('starts again after a crash, although another program has the port since', async () => {
    const berth = newBerth()
    await berth.cli('up', '--detach')
    const old = berth.addresses
    for (const pid of listControlProcesses(berth)) kill(pid)
    const other = await listen(Number(new URL(old.api).port))
    expect(other).toBeDefined()
    const report = JSON.parse((await berth.cli('up', '--detach', '--json')).stdout)
    expect(report.started).toBe(true)
    expect(report.api).not.toBe(old.api)
  })

  test('fails with the end of the log when the control plane does not start', async () => {
    const { port } = (await listen(0)).address() as { port: number }
    const berth = newBerth({ BERTH_API_LISTEN: `127.0.0.1:${port}` })
    const failure = await berth.cli('up', '--detach').catch((error) => error)
    expect(failure.code).toBe(1)
    expect(failure.stderr).toContain('error: the control plane exited with code 1;')
    expect(failure.stderr).toContain(`error: 127.0.0.1:${port} is in use by another program; set BERTH_API_LISTEN`)
    expect(listControlProcesses(berth)).toEqual([])
  })
})

async function listen(port: number): Promise<Server> {
  const server = createServer((socket) => socket.end('HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n'))
  servers.push(server)
  await until(
    () =>
      new Promise<boolean>((resolve) => {
        server.once('error', () => resolve(false))
        server.listen(port, '127.0.0.1', () => resolve(true))
      }),
  )
  return server
}
