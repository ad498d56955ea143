import { type ChildProcess, spawn } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const launcher = resolve(import.meta.dirname, '../../berth')
const startSeconds = 150

let home: string
let elsewhere: string
let platform: ChildProcess | undefined

interface Result {
  code: number | null
  out: string
  err: string
}

interface Run {
  env?: Record<string, string>
  /** Text for standard input, which is empty by default. */
  input?: string
  program?: string
}

async function run(args: string[], { env = {}, input, program = launcher }: Run = {}): Promise<Result> {
  const child = spawn(program, args, {
    env: environment(env),
    stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'],
  })
  child.stdin?.end(input)
  const ended = new Promise<number | null>((resolve, reject) => child.once('close', resolve).once('error', reject))
  const [out, err] = await Promise.all(
    [child.stdout, child.stderr].map(async (stream) => (await stream!.toArray()).join('')),
  )
  return { code: await ended, out: out!, err: err! }
}

const berth = (...args: string[]) => run(args)

/** Runs the CLI on a terminal, which merges both outputs. */
function berthAtTerminal(command: string, options: Run = {}): Promise<Result> {
  return run(['-qec', `${launcher} ${command}`, '/dev/null'], { input: '', program: 'script', ...options })
}

/** Removes the platform settings of the caller's environment and adds those of the test. */
function environment(changes: Record<string, string>): Record<string, string | undefined> {
  const outside = Object.entries(process.env).filter(([name]) => !name.startsWith('BERTH_') && !/COLOR|^CI$/.test(name))
  return {
    ...Object.fromEntries(outside),
    BERTH_HOME: home,
    BERTH_API_LISTEN: '127.0.0.1:0',
    BERTH_SANDBOX_LISTEN: '127.0.0.1:0',
    BERTH_EDGE_LISTEN: '127.0.0.1:0',
    ...changes,
  }
}

async function json(...args: string[]) {
  const { code, out, err } = await berth(...args, '--json')
  expect({ code, err }).toEqual({ code: 0, err: '' })
  return JSON.parse(out)
}

async function until(what: string, seconds: number, isSo: () => boolean): Promise<void> {
  for (const end = Date.now() + seconds * 1000; !isSo(); await delay(50)) {
    if (Date.now() > end) throw new Error(`not within ${seconds} seconds: ${what}`)
  }
}

beforeAll(async () => {
  elsewhere = mkdtempSync(join(tmpdir(), 'berth-cli-'))
  home = mkdtempSync(join(tmpdir(), 'berth-home-'))
  chmodSync(home, 0o711)
  const log = join(elsewhere, 'up.log')
  const descriptor = openSync(log, 'w')
  platform = spawn(launcher, ['up'], { env: environment({}), stdio: ['ignore', descriptor, descriptor] })
  const isOver = () => platform?.exitCode !== null || existsSync(join(home, 'run/addresses.json'))
  await until('the platform answers', startSeconds, isOver).finally(() => {
    if (!existsSync(join(home, 'run/addresses.json'))) console.error(readFileSync(log, 'utf8'))
  })
  expect(platform.exitCode).toBeNull()
})

afterAll(async () => {
  try {
    platform?.kill('SIGTERM')
    await until('the control plane stops', 60, () => platform === undefined || platform.exitCode !== null)
  } finally {
    platform?.kill('SIGKILL')
    await berth('down')
    rmSync(home, { recursive: true, force: true })
    rmSync(elsewhere, { recursive: true, force: true })
  }
})

describe('help', () => {
  // The unit test of the program checks the help of every command.
  test.each([[[]], [['apps']], [['apps', 'create']], [['sandbox', 'services', 'put']], [['up']]])(
    'of %j is printed with examples',
    async (path) => {
      const { code, out, err } = await berth(...path, '--help')
      expect({ code, err }).toEqual({ code: 0, err: '' })
      expect(out).toContain(`Usage: ${['berth', ...path].join(' ')}`)
      expect(out).toContain('Examples:')
    },
  )

  test('is printed for "help" as for "--help"', async () => {
    expect(await berth('help', 'apps')).toEqual(await berth('apps', '--help'))
  })

  test('"--version" prints the version', async () => {
    expect((await berth('--version')).out).toMatch(/^\d+\.\d+\.\d+\n$/)
  })
})

describe('an invalid command', () => {
  test.each([
    [['frobnicate'], "unknown command 'frobnicate'"],
    [['toknes'], 'Did you mean tokens?'],
    [['apps', 'creat', 'x'], 'Did you mean create?'],
    [['apps', 'list', '--jsno'], 'Did you mean --json?'],
    [['apps', 'create'], "missing required argument 'name'"],
    [['apps', 'create', 'a', 'b'], 'too many arguments'],
    [['tokens', 'create'], "required option '--kind <kind>' not specified"],
    [['tokens', 'create', '--kind', 'king'], 'Allowed choices are root, org, read, sandbox'],
    [['tokens', 'create', '--kind', 'org', '--expires', 'soon'], 'Write a number and a unit'],
    [['completion', 'tcsh'], 'Allowed choices are bash, zsh, fish'],
    [['apps', 'show', '..'], '".." is not a name'],
    [['sandbox', 'exec', 'demo', 'ls', '-l'], 'Write -- before options of the program'],
    [['postgres', 'connect', 'shop', '-c', 'select 1'], 'Write -- before options of the program'],
    [['--url', 'nowhere', 'apps', 'list'], '--url must be an address such as'],
  ])('%j exits with 2 and prints the reason', async (args, sentence) => {
    const { code, out, err } = await run(args)
    expect({ code, out }).toEqual({ code: 2, out: '' })
    expect(err).toContain(sentence)
  })

  test.each([
    [['apps', 'list', '--jsno'], "unknown option '--jsno' (Did you mean --json?)"],
    [['apps', 'create'], "missing required argument 'name'"],
    [['postgres'], 'a command is missing; --help lists them'],
  ])('%j prints the reason as JSON with --json', async (args, sentence) => {
    const { code, out, err } = await berth(...args, '--json')
    expect({ code, out, err: JSON.parse(err) }).toEqual({ code: 2, out: '', err: { error: sentence } })
  })

  test('exits with 2 if a setting is invalid', async () => {
    const { code, err } = await run(['apps', 'list'], { env: { BERTH_LOG_LEVEL: 'loud' } })
    expect({ code, err }).toEqual({ code: 2, err: expect.stringContaining('BERTH_LOG_LEVEL must be one of') })
  })
})

describe('apps', () => {
  test('can be created, listed, shown and destroyed with text output', async () => {
    expect(await berth('apps', 'create', 'cli-people')).toEqual({
      code: 0,
      out: 'Created app cli-people in organization personal.\n',
      err: '',
    })
    const list = (await berth('apps', 'list')).out.split('\n')
    expect(list[0]).toMatch(/^NAME +STATUS +MACHINES +VOLUMES +NETWORK$/)
    expect(list).toContainEqual(expect.stringMatching(/^cli-people +pending +0 +0 +default$/))
    expect((await berth('app', 'show', 'cli-people')).out).toMatch(
      /^name +cli-people\nid +[a-z0-9]{16}\nstatus +pending\n/,
    )
    const destroyed = await berth('apps', 'destroy', 'cli-people', '--yes')
    expect(destroyed).toEqual({ code: 0, out: 'Destroyed app cli-people.\n', err: '' })
    expect(await berth('apps', 'show', 'cli-people')).toEqual({ code: 1, out: '', err: 'error: app not found\n' })
  })

  test('can be created, listed, shown and destroyed with --json', async () => {
    await json('orgs', 'create', 'cli-apps')
    const created = await json(
      'apps',
      'create',
      'cli-json',
      '--org',
      'cli-apps',
      '--network',
      'own',
      '--enable-subdomains',
    )
    expect(created).toMatchObject({ name: 'cli-json', network: 'own', created_at: expect.any(Number) })
    const shown = await json('apps', 'show', 'cli-json')
    expect(shown).toMatchObject({ id: created.id, status: 'pending', organization: { slug: 'cli-apps' } })
    expect(await json('apps', 'list', '--org', 'cli-apps')).toEqual({
      total_apps: 1,
      apps: [expect.objectContaining({ id: created.id, name: 'cli-json' })],
    })
    expect(await json('apps', 'destroy', 'cli-json', '--force', '--yes')).toEqual({})
    expect(await json('apps', 'list', '--org', 'cli-apps')).toEqual({ total_apps: 0, apps: [] })
  })

  test('print a message when the list is empty', async () => {
    await json('orgs', 'create', 'cli-empty')
    const { code, out, err } = await berth('apps', 'ls', '--org', 'cli-empty')
    expect({ code, out }).toEqual({ code: 0, out: '' })
    expect(err).toContain('No apps in cli-empty')
  })

  test('print the error of the platform when the creation is rejected', async () => {
    await json('apps', 'create', 'cli-taken')
    const sentence = 'Validation failed: Name has already been taken'
    expect(await berth('apps', 'create', 'cli-taken')).toEqual({ code: 1, out: '', err: `error: ${sentence}\n` })
    const refused = await berth('apps', 'create', 'cli-taken', '--json')
    expect(refused).toMatchObject({ code: 1, out: '' })
    expect(JSON.parse(refused.err)).toEqual({ error: sentence, status: 'name_taken' })
  })

  test('are not destroyed without --yes if there is no terminal for the question', async () => {
    await json('apps', 'create', 'cli-kept')
    const { code, err } = await berth('apps', 'destroy', 'cli-kept')
    expect({ code, err }).toEqual({ code: 2, err: expect.stringContaining('use --yes') })
    expect(await json('apps', 'show', 'cli-kept')).toMatchObject({ name: 'cli-kept' })
  })

  test('are destroyed at a terminal only after confirmation', async () => {
    await json('apps', 'create', 'cli-asked')
    const no = await berthAtTerminal('apps destroy cli-asked', { input: 'n\n' })
    expect(no.code).toBe(1)
    expect(no.out).toContain('Destroy app cli-asked of organization personal with 0 machines and 0 volumes? [y/N]')
    expect(await json('apps', 'show', 'cli-asked')).toMatchObject({ name: 'cli-asked' })
    const noAnswer = await berthAtTerminal('apps destroy cli-asked', { input: '\u0004' })
    expect(noAnswer).toMatchObject({ code: 1, out: expect.stringMatching(/\r\nerror: nothing was changed\r\n$/) })
    expect(await berthAtTerminal('apps destroy cli-asked', { input: 'y\n' })).toMatchObject({ code: 0 })
    expect((await berth('apps', 'show', 'cli-asked')).code).toBe(1)
  })
})

describe('organizations', () => {
  test('can be created and listed', async () => {
    expect((await berth('orgs', 'create', 'cli-people', '--name', 'For People')).out).toContain('cli-people')
    expect((await berth('org', 'list')).out).toMatch(/^cli-people +For People +[a-z0-9]{16} +\d{4}-/m)
    const created = await json('orgs', 'create', 'cli-machine')
    expect(created).toMatchObject({ slug: 'cli-machine', name: 'cli-machine' })
    const { organizations } = await json('orgs', 'list')
    expect(organizations).toContainEqual(created)
    expect(organizations).toContainEqual(expect.objectContaining({ slug: 'personal' }))
  })

  test('can be shown and changed', async () => {
    await json('orgs', 'create', 'cli-apart')
    const shown = async () => (await berth('orgs', 'show', 'cli-apart')).out
    expect(await shown()).toMatch(/^slug +cli-apart\nname +cli-apart\n[\s\S]*\ncross-network replays +on\n/)
    const changed = await berth('orgs', 'update', 'cli-apart', '--cross-network-replays', 'off')
    expect(changed).toEqual({ code: 0, out: 'Replays across the networks of cli-apart are off.\n', err: '' })
    expect(await shown()).toMatch(/\ncross-network replays +off\n/)
    const back = await json('orgs', 'update', 'cli-apart', '--cross-network-replays', 'on')
    expect(back).toMatchObject({ slug: 'cli-apart', cross_network_replays: true })
    expect((await berth('orgs', 'update', 'cli-apart')).code).toBe(2)
    expect((await berth('orgs', 'show', 'nobody')).err).toBe('error: organization not found\n')
  })
})

describe('tokens', () => {
  test('work until they are revoked', async () => {
    await json('orgs', 'create', 'cli-tokens')
    const issued = await json(
      'tokens',
      'create',
      '--kind',
      'org',
      '--org',
      'cli-tokens',
      '--name',
      'ci',
      '--expires',
      '30d',
    )
    expect(Object.keys(issued)).toEqual(['id', 'token', 'kind'])
    const asCi = (...args: string[]) => run(args, { env: { BERTH_TOKEN: issued.token } })
    expect((await asCi('apps', 'create', 'cli-by-token', '--org', 'cli-tokens')).code).toBe(0)
    expect(await asCi('apps', 'list')).toMatchObject({ code: 1, err: 'error: organization not found\n' })

    const [listed] = (await json('tokens', 'list', '--org', 'cli-tokens')).tokens
    expect(listed).toMatchObject({ id: issued.id, kind: 'org', org_slug: 'cli-tokens', name: 'ci', revoked_at: null })
    expect(Date.parse(listed.expires_at) - Date.parse(listed.created_at)).toBeCloseTo(30 * 86_400_000, -3)

    expect(await berth('tokens', 'revoke', issued.id)).toMatchObject({ code: 0, out: `Revoked token ${issued.id}.\n` })
    expect(await asCi('apps', 'list', '--org', 'cli-tokens')).toMatchObject({ code: 1, out: '' })
    expect((await berth('token', 'list')).out).toMatch(new RegExp(`^${issued.id} .* revoked$`, 'm'))
  })

  test('belong to the organization personal by default', async () => {
    const issued = await json('tokens', 'create', '--kind', 'read')
    const asReader = (...args: string[]) => run(args, { env: { BERTH_TOKEN: issued.token } })
    expect((await asReader('apps', 'list')).code).toBe(0)
    expect(await asReader('apps', 'create', 'cli-reader')).toMatchObject({ code: 1, out: '' })
  })

  test('are printed alone on standard output, with the warning on standard error', async () => {
    const { code, out, err } = await berth('tokens', 'create', '--kind', 'root')
    expect(code).toBe(0)
    expect(out).toMatch(/^berth_[A-Za-z0-9]{43}\n$/)
    expect(err).toContain('shown only once')
  })
})

describe('finding the platform', () => {
  test('takes the address from --url, then from BERTH_URL', async () => {
    const { api } = JSON.parse(readFileSync(join(home, 'run/addresses.json'), 'utf8'))
    const nowhere = 'http://127.0.0.1:2'
    expect(await run(['orgs', 'list', '--url', api], { env: { BERTH_URL: nowhere } })).toMatchObject({ code: 0 })
    const sentence = `no platform answers at ${nowhere}; start one with "berth up"`
    const missed = await run(['orgs', 'list'], { env: { BERTH_URL: nowhere } })
    expect(missed).toEqual({ code: 1, out: '', err: `error: ${sentence}\n` })
    const missedJson = await berth('orgs', 'list', '--json', '--url', nowhere)
    expect(JSON.parse(missedJson.err)).toEqual({ error: sentence })
  })

  test('prints what to do when the home has no platform or no token', async () => {
    const empty = join(elsewhere, 'no-home')
    const noPlatform = await run(['apps', 'list'], { env: { BERTH_HOME: empty } })
    expect(noPlatform).toMatchObject({
      code: 1,
      err: expect.stringContaining(`no platform runs in ${empty}; start one`),
    })
    const noToken = await run(['apps', 'list'], { env: { BERTH_HOME: empty, BERTH_URL: 'http://127.0.0.1:2' } })
    expect(noToken).toMatchObject({ code: 2, err: expect.stringContaining('no token: set BERTH_TOKEN') })
    expect(existsSync(empty)).toBe(false)
  })
})

describe('the process commands', () => {
  test('show the running services', async () => {
    expect(await json('status')).toMatchObject({
      home,
      tree: 'up',
      answering: true,
      services: expect.arrayContaining([expect.objectContaining({ name: 'state-database', state: 'up' })]),
    })
    expect((await berth('status')).out).toMatch(/^answering +yes$/m)
  })

  test('exit with 1 for the status of a platform that does not run', async () => {
    const { code, out } = await run(['status', '--json'], { env: { BERTH_HOME: join(elsewhere, 'no-home') } })
    expect(code).toBe(1)
    expect(JSON.parse(out)).toMatchObject({ answering: false, tree: 'down', api: null })
  })

  test('show the configuration without its secrets', async () => {
    const env = { BERTH_TOKEN: 'berth_verysecret', BERTH_DATABASE_URL: 'postgres://me:verysecret@db/x' }
    for (const args of [['config'], ['config', '--json']]) {
      const { code, out, err } = await run(args, { env })
      expect({ code, err }).toEqual({ code: 0, err: '' })
      expect(out).toContain('(set)')
      expect(out).toContain(home)
      expect(out).not.toContain('verysecret')
    }
    const settings = JSON.parse((await run(['config', '--json'], { env })).out)
    expect(settings).toContainEqual(expect.objectContaining({ name: 'BERTH_TOKEN', value: '(set)', set: true }))
  })
})

describe('at a terminal', () => {
  const dim = '\u001b[2m'

  test('headers are dim unless NO_COLOR is set', async () => {
    const env = { TERM: 'xterm-256color' }
    expect((await berthAtTerminal('orgs list', { env })).out).toContain(`${dim}SLUG`)
    expect((await berthAtTerminal('orgs list', { env: { ...env, NO_COLOR: '1' } })).out).not.toContain(dim)
    expect((await berth('orgs', 'list')).out).not.toContain(dim)
  })
})

describe('completion', () => {
  test('prints a script that bash accepts, and scripts for zsh and fish', async () => {
    const bash = await berth('completion', 'bash')
    expect(await run(['-n'], { program: 'bash', input: bash.out })).toEqual({ code: 0, out: '', err: '' })
    expect((await berth('completion', 'zsh')).out).toMatch(/^#compdef berth\n/)
    expect((await berth('completion', 'fish')).out).toContain('complete -c berth')
  })
})

describe('the launcher', () => {
  test('works through symbolic links', async () => {
    symlinkSync(launcher, join(elsewhere, 'first'))
    symlinkSync('first', join(elsewhere, 'second'))
    expect(await run(['--version'], { program: join(elsewhere, 'second') })).toEqual(await berth('--version'))
  })

  test('prints what to do when the dependencies are not installed', async () => {
    mkdirSync(join(elsewhere, 'scripts'))
    for (const file of ['berth', 'scripts/node.sh']) copyFileSync(join(dirname(launcher), file), join(elsewhere, file))
    const { code, err } = await run(['--help'], { program: join(elsewhere, 'berth') })
    expect({ code, err }).toEqual({ code: 2, err: expect.stringContaining('run "make up" (or npm ci) first') })
  })

  test('caches compiled code in the checkout', async () => {
    await berth('--version')
    expect(existsSync(join(dirname(launcher), '.cache/node'))).toBe(true)
  })
})
