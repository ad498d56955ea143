// Everything that the platform opens below a path that a tenant can write is replaced by something else, one after the
// other. The platform must answer all the same, soon, and without what the replacement leads to.
import { execFileSync } from 'node:child_process'
import {
  existsSync,
  globSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Tenant } from '../support/tenant/platform.ts'
import { until } from '../support/until.ts'

const tenant = new Tenant()
const { berth } = tenant
const secret = 'secret of the host'
let planted: string
let box: string
let machine: string

/** What a tenant can put in place of a file; only root of the host can make a device. */
const replacements: Record<string, (path: string) => void> = {
  'a link to a file of the host': (path) => symlinkSync(`${planted}/secret`, path),
  'a link to a file that does not exist': (path) => symlinkSync(`${planted}/made`, path),
  'a link to a directory of the host': (path) => symlinkSync(planted, path),
  'a link to itself': (path) => symlinkSync(path, path),
  'a named pipe': (path) => execFileSync('mkfifo', ['-m', '666', path]),
  'a device': (path) => execFileSync('mknod', ['-m', '666', path, 'c', '1', '5']),
  'a directory': (path) => mkdirSync(path),
  'a huge file': (path) => {
    writeFileSync(path, '')
    truncateSync(path, 2 ** 40)
  },
}

const stateFiles = ['group', 'begun', 'restarts', 'health', 'wake', 'stderr', 'clock', 'problem']
/** Relative to the directory of the sandbox. */
const sandboxFiles = [
  ...stateFiles.map((name) => `run/web/state/${name}`),
  ...['status', 'control', 'lock', 'death_tally'].map((name) => `run/web/supervise/${name}`),
  ...[
    'run/web/log/supervise/status',
    'run/web~stderr/supervise/control',
    'run/.s6-svscan/control',
    'run/.s6-svscan/SIGTERM',
  ],
  ...['run/web/state', 'run/web/supervise', 'run/web/event'],
  ...['stdout', 'stderr'].flatMap((stream) =>
    ['/current', '/state', '/lock', ''].map((name) => `log/web/${stream}${name}`),
  ),
  'log/web/stdout/@400000006af945e6385015de.s',
]
const mountPoints = ['proc', 'dev', 'run', 'usr', '.berth', '.sprite', 'etc/resolv.conf']

describe.runIf(process.getuid?.() === 0)('a platform whose files a tenant replaces', () => {
  beforeAll(async () => {
    await tenant.open()
    planted = `${berth.home}/planted`
    mkdirSync(planted, { mode: 0o700 })
    writeFileSync(`${planted}/secret`, `${secret}\n`)
    await tenant.createSandbox('one')
    const health = { command: ['true'], interval: '1s' }
    const service = { cmd: 'sh', args: ['-c', 'while :; do echo out; echo err >&2; sleep 0.2; done'], health }
    const made = await tenant.onSandbox('PUT', '/one/services/web?duration=50ms', service)
    expect(made.status, made.text).toBeLessThan(300)
    const found = readdirSync(`${berth.home}/sandbox`).find((name) => !name.startsWith('probe'))
    box = `${berth.home}/sandbox/${found}`
    await until(() => existsSync(`${box}/log/web/stdout/current`))
    machine = await tenant.startMachine()
  }, 300_000)

  afterAll(() => tenant.close())

  /** Puts something in place of a file until the returned function is called. */
  function replace(path: string, make: (path: string) => void): () => void {
    const aside = `${planted}/aside`
    const isPresent = existsSync(dirname(path)) && existsSync(path)
    if (isPresent) renameSync(path, aside)
    make(path)
    return () => {
      rmSync(path, { recursive: true, force: true })
      if (isPresent) renameSync(aside, path)
    }
  }

  /** The answers to requests, each of which must come within a few seconds. */
  async function answers(requests: (() => Promise<{ status: number; text: string }>)[]): Promise<string> {
    const health = () => berth.call('GET', '/healthz').then(({ status }) => ({ status, text: '' }))
    const all = [...requests, health].map(async (request) => {
      const startedAt = performance.now()
      const { status, text } = await request()
      expect(status).toBeLessThan(600)
      expect(performance.now() - startedAt).toBeLessThan(10_000)
      return text
    })
    return (await Promise.all(all)).join('\n')
  }

  const get = (path: string) => () => tenant.onSandbox('GET', path)
  const requests = [
    get('/one/services/web'),
    get('/one/services'),
    get('/one/services/web/logs?lines=5&duration=50ms'),
    () => tenant.onSandbox('POST', '/one/services/signal', { name: 'web', signal: 'CONT' }),
  ]

  test('is asked for what it reads from these files', async () => {
    const all = await Promise.all(requests.map((request) => request()))
    expect(
      all.map(({ status }) => status < 300),
      JSON.stringify(all),
    ).toEqual(all.map(() => true))
    expect(all[0]!.text).toContain('"running"')
    expect(all[2]!.text).toContain('out')
  })

  describe.each(Object.keys(replacements))('by %s', (kind) => {
    test.each(sandboxFiles)('reads services and logs of a sandbox without %s', async (file) => {
      const restore = replace(`${box}/${file}`, replacements[kind]!)
      try {
        const text = await answers(requests)
        expect(text).not.toContain(secret)
      } finally {
        restore()
      }
      expect(readdirSync(planted).sort()).toEqual(['secret'])
    })

    test('starts a sandbox whose mount points were replaced', async () => {
      for (const name of mountPoints) {
        rmSync(`${box}/upper/${name}`, { recursive: true, force: true })
        mkdirSync(dirname(`${box}/upper/${name}`), { recursive: true })
        replacements[kind]!(`${box}/upper/${name}`)
      }
      const restarted = await tenant.onSandbox('POST', '/one/restart')
      expect(restarted.status, restarted.text).toBeLessThan(300)
      expect(await tenant.inSandbox('one', ['sh', '-c', 'test -f /proc/1/status && echo here'])).toBe('here\n')
      expect(readdirSync(planted).sort()).toEqual(['secret'])
    })

    test('makes a checkpoint of such files, and measures them', async () => {
      replacements[kind]!(`${box}/upper/replaced`)
      const made = await tenant.onSandbox('POST', '/one/checkpoint', {})
      expect(made.text).toContain('complete')
      expect(made.text).not.toContain(secret)
      const copies = globSync(`${box}/checkpoint/*/{,layer/}upper/replaced`)
      expect(copies.length).toBeGreaterThan(0)
      rmSync(`${box}/upper/replaced`, { recursive: true })
      const [id] = readdirSync(`${box}/checkpoint`).sort().slice(-1)
      await tenant.onSandbox('DELETE', `/one/checkpoints/${id}`)
    })

    test('enters a machine whose lists of users were replaced', async () => {
      const upper = `${berth.home}/machine/${machine}/layer/upper/etc`
      for (const name of ['passwd', 'group']) {
        await tenant.inMachine(machine, ['sh', '-c', `rm -rf /etc/${name}`])
        rmSync(`${upper}/${name}`, { recursive: true, force: true })
        replacements[kind]!(`${upper}/${name}`)
      }
      const startedAt = performance.now()
      expect(await tenant.inMachine(machine, ['echo', 'here'])).toBe('here\n')
      expect(performance.now() - startedAt).toBeLessThan(10_000)
    })
  })
})
