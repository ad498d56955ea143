import { execFile, spawn, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { promisify } from 'node:util'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { baseEnvironment, findCommand, isRoot } from '../../../src/drivers/host/process.ts'
import { s6Supervisor } from '../../../src/drivers/s6/supervisor.ts'
import { maxServices } from '../../../src/drivers/s6/tree.ts'
import { readConfig } from '../../../src/main/config.ts'
import { install, nextCommands } from '../../../src/main/install.ts'
import { settings } from '../../../src/main/setting.ts'
import { waitUntil } from '../../../src/model/poll.ts'
import { processesBelow, removeTemporaryHome, temporaryDirectory } from '../../support/temporary-home.ts'

const repository = new URL('../../..', import.meta.url).pathname.replace(/\/$/, '')
let directory: string
let home: string
let units: string

beforeEach(() => {
  directory = temporaryDirectory()
  home = `${directory}/home`
  units = `${directory}/units`
})

afterEach(async () => {
  await removeTemporaryHome(`${directory}/home`)
  rmSync(directory, { recursive: true, force: true })
})

function installUnits(changes: Record<string, string> = {}, print = false) {
  const environment = { BERTH_HOME: home, ...changes }
  return install(readConfig(environment), { print, directory: units, environment })
}

function unit(name: 'berth' | 'berth-tree'): string[] {
  return readFileSync(`${units}/${name}.service`, 'utf8').split('\n')
}

describe('the units', () => {
  test('keep workloads running over a restart of the control plane', async () => {
    expect(await installUnits()).toEqual([`${units}/berth-tree.service`, `${units}/berth.service`])
    const tree = unit('berth-tree')
    expect(tree).toContain(`ExecStart=${findCommand('s6-svscan')} -c ${maxServices} ${home}/tree`)
    expect(tree).toContain(`ExecStop=${repository}/berth down`)
    expect(tree).toEqual(expect.arrayContaining(['KillMode=process', 'Delegate=yes', 'Restart=on-failure']))
    expect(unit('berth')).toEqual(
      expect.arrayContaining([
        'Requires=berth-tree.service',
        'After=berth-tree.service',
        `ExecStart=${repository}/berth up`,
        'KillMode=process',
        'Restart=always',
        `Environment=BERTH_HOME=${home}`,
      ]),
    )
  })

  test('contain every setting that is set, with secrets in a separate file', async () => {
    const token = 'to"k\\en$with`all'
    const given: Record<string, string> = {
      BERTH_HOME: home,
      BERTH_API_LISTEN: '127.0.0.1:1',
      BERTH_SANDBOX_LISTEN: '127.0.0.1:2',
      BERTH_TOKEN: token,
      BERTH_DATABASE_URL: 'postgresql://u:secret@db/x',
      BERTH_EDGE_DATABASE_URL: 'postgresql://edge:secret@db/x',
      BERTH_TLS_CERT: '/etc/cert.pem',
      BERTH_TLS_KEY: '/etc/key.pem',
      BERTH_INSECURE: 'on',
      BERTH_RATE_LIMIT: 'on',
      BERTH_UID_BASE: '400000',
      BERTH_URL: 'http://127.0.0.1:1',
      BERTH_LOG_LEVEL: 'debug',
    }
    const secrets = settings.filter(({ secret }) => secret).map(({ name }) => name)
    expect(Object.keys(given)).toEqual(expect.arrayContaining(secrets))
    const written = await installUnits(given)
    expect(written).toContain(`${home}/environment`)
    expect(statSync(`${home}/environment`).mode & 0o777).toBe(0o600)
    const sourced = spawnSync('sh', [
      '-c',
      `. ${home}/environment; printf '%s %s' "$BERTH_TOKEN" "$BERTH_DATABASE_URL"`,
    ])
    expect(sourced.stdout.toString()).toBe(`${token} postgresql://u:secret@db/x`)
    const lines = unit('berth')
    expect(lines).toContain(`EnvironmentFile=-${home}/environment`)
    for (const [name, value] of Object.entries(given)) {
      if (secrets.includes(name)) expect(lines.join('\n')).not.toContain(`${name}=`)
      else expect(lines).toContain(`Environment=${name}=${value}`)
    }
  })

  test('contain absolute paths', async () => {
    const paths = ['BERTH_TLS_CERT', 'BERTH_TLS_KEY', 'BERTH_REPOSITORY', 'BERTH_PG16_BIN', 'BERTH_PG17_BIN']
    await installUnits(Object.fromEntries(paths.map((name) => [name, `here/${name}`])))
    const lines = unit('berth')
    for (const name of paths) expect(lines).toContain(`Environment=${name}=${process.cwd()}/here/${name}`)
  })

  test('quote characters that are special to systemd', async () => {
    home = `${directory}/a b"c%d`
    await installUnits()
    const quoted = home.replace('"', '\\"').replace('%', '%%')
    const tree = unit('berth-tree')
    expect(tree).toContain(`ExecStart=${findCommand('s6-svscan')} -c ${maxServices} "${quoted}/tree"`)
    expect(tree).toContain(`Environment="BERTH_HOME=${quoted}"`)
    expect(unit('berth')).toContain(`EnvironmentFile=-${home.replace('%', '%%')}/environment`)
    verifyUnits()
  })

  test.runIf(findCommand('systemd-analyze') !== undefined)('are accepted by systemd', async () => {
    await installUnits({ BERTH_TOKEN: 'x' })
    verifyUnits()
  })

  test('can be written again, keep an existing file of secrets, and never replace those of another home', async () => {
    await installUnits({ BERTH_TOKEN: 'kept' })
    expect(await installUnits({ BERTH_LOG_LEVEL: 'warn' })).toHaveLength(2)
    expect(readFileSync(`${home}/environment`, 'utf8')).toBe('BERTH_TOKEN="kept"\n')
    expect(unit('berth')).toContain('Environment=BERTH_LOG_LEVEL=warn')
    const before = unit('berth-tree')
    home = `${directory}/other`
    await expect(installUnits()).rejects.toThrow('is for another home')
    expect(unit('berth-tree')).toEqual(before)
    expect(readdirSync(units).sort()).toEqual(['berth-tree.service', 'berth.service'])
  })

  test('are only returned with print, without secrets', async () => {
    const texts = await installUnits({ BERTH_TOKEN: 'hidden' }, true)
    expect(texts).toHaveLength(2)
    expect(texts[0]).toMatch(/^# .*\/berth-tree\.service\n\[Unit\]\n/)
    expect(texts.join('')).not.toContain('hidden')
    expect(readdirSync(directory)).toEqual([])
  })

  test.skipIf(existsSync('/run/systemd/system'))('are refused where systemd does not run', async () => {
    const config = readConfig({ BERTH_HOME: home })
    await expect(install(config, { print: false })).rejects.toThrow('systemd does not run on this machine')
    expect(await install(config, { print: true })).toHaveLength(2)
    expect(existsSync(home)).toBe(false)
  })

  test('come with the commands that enable them', () => {
    expect(nextCommands).toContain(`systemctl ${isRoot() ? '' : '--user '}enable --now berth-tree berth`)
  })
})

/** systemd-analyze also reports programs that do not exist, so its output about the units must be empty. */
function verifyUnits(): void {
  if (findCommand('systemd-analyze') === undefined) return
  const files = readdirSync(units).map((file) => `${units}/${file}`)
  const { stdout, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', ...files], { encoding: 'utf8' })
  const lines = `${stdout}${stderr}`.split('\n').filter((line) => line.includes('berth'))
  expect(lines).toEqual([])
}

describe('the tree that systemd starts', () => {
  /** Returns the command of a unit; none of its words is quoted here. */
  function commandOf(name: 'berth' | 'berth-tree', key: string): string[] {
    return unit(name)
      .find((line) => line.startsWith(`${key}=`))!
      .slice(key.length + 1)
      .split(' ')
  }

  test('is the one that the platform uses', async () => {
    await installUnits()
    const [command = '', ...args] = commandOf('berth-tree', 'ExecStart')
    const tree = spawn(command, args, { stdio: 'ignore', env: baseEnvironment, cwd: '/' })
    const supervisor = s6Supervisor({ treeDirectory: `${home}/tree`, logDirectory: `${home}/log` })
    expect(await waitUntil(() => supervisor.inspectTree().is === 'up', 45)).toBe(true)
    await supervisor.ensureTree()
    await supervisor.ensureService('sleeper', { command: ['sleep', '1000'] })
    expect(supervisor.inspectTree()).toEqual({ is: 'up', pid: tree.pid })
    // A service has the name of s6-svscan between fork and exec.
    const trees = () => processesBelow(home).filter(({ name }) => name === 's6-svscan')
    expect(await waitUntil(() => trees().length === 1, 45)).toBe(true)

    const ended = new Promise((resolve) => tree.once('exit', (code) => resolve(code)))
    await supervisor.stopTree()
    // systemd would take any other code for a crash and restart the unit.
    expect(await ended).toBe(0)
    expect(processesBelow(home)).toEqual([])
  })

  test('replaces one that was started by hand', async () => {
    await installUnits()
    const supervisor = s6Supervisor({ treeDirectory: `${home}/tree`, logDirectory: `${home}/log` })
    const [, script] = /^ExecStartPre=\/bin\/sh -c "(.*)" end-other-tree/m.exec(unit('berth-tree').join('\n')) ?? []
    const words = [findCommand('s6-svscanctl')!, `${home}/tree`, `${repository}/berth`]
    const runScript = () =>
      promisify(execFile)('/bin/sh', ['-c', script!.replaceAll('\\"', '"').replaceAll('$$', '$'), 'sh', ...words], {
        env: { ...baseEnvironment, BERTH_HOME: home },
      })
    await runScript()
    await supervisor.ensureTree()
    await runScript()
    expect(supervisor.inspectTree().is).toBe('down')
    expect(processesBelow(home)).toEqual([])
  })
})

describe('scripts/setup.sh', () => {
  const nobody = isRoot() ? { uid: 65_534, gid: 65_534 } : {}

  /** Creates a complete checkout whose npm and apt-get only record their calls. */
  function makeCheckout(missing: string[] = []) {
    const bin = `${directory}/bin`
    const node = `node_modules/node-linux-${process.arch}/bin`
    for (const part of ['scripts', node, 'bin']) mkdirSync(`${directory}/${part}`, { recursive: true })
    for (const script of ['setup.sh', 'node.sh'])
      copyFileSync(`${repository}/scripts/${script}`, `${directory}/scripts/${script}`)
    writeFileSync(`${directory}/package-lock.json`, '{}')
    utimesSync(`${directory}/package-lock.json`, 1, 1)
    writeFileSync(`${directory}/node_modules/.package-lock.json`, '{}')
    symlinkSync('/bin/true', `${directory}/${node}/node`)
    writeProgram(`${bin}/python3`, 'exit 0') // has the modules for virtual environments
    for (const part of ['test/clients', '.cache/clients']) mkdirSync(`${directory}/${part}`, { recursive: true })
    for (const file of ['package-lock.json', 'requirements.txt'])
      writeFileSync(`${directory}/test/clients/${file}`, file)
    const generators = createHash('sha256').update('package-lock.jsonrequirements.txt').digest('hex')
    writeFileSync(`${directory}/.cache/clients/installed`, `${generators}  -\n`)
    for (const tool of ['sh', 'dirname', 'cat', 'find', 'sha256sum', 'id', 'echo', 'rm', 'uname', 'flock', 'touch']) {
      symlinkSync(findCommand(tool)!, `${bin}/${tool}`)
    }
    const packaged = ['s6-svscan', 'pgbouncer', 'openssl', 'bwrap', 'nft', 'ip', 'dnsmasq', 'curl', 'ps', 'mkfs.btrfs']
    const images = ['docker-registry', 'busybox', 'faketime', 'skopeo', 'shellcheck', 'perlcritic']
    for (const tool of ['npm', 'apt-get', ...packaged, ...images, 'mkfs.xfs', 'mkfs.ext4', 'wrk', 'haproxy']) {
      if (!missing.includes(tool)) writeProgram(`${bin}/${tool}`, `echo "${tool} $*" >>${directory}/calls`)
    }
    chmodSync(directory, 0o755)
    return {
      setup: (purpose: string, as: object = {}) =>
        spawnSync('sh', [`${directory}/scripts/setup.sh`, purpose], { env: { PATH: bin }, encoding: 'utf8', ...as }),
      calls: () => (existsSync(`${directory}/calls`) ? readFileSync(`${directory}/calls`, 'utf8') : ''),
      writeProgram: (name: string, script: string) => writeProgram(`${bin}/${name}`, script),
    }
  }

  function writeProgram(file: string, script: string): void {
    writeFileSync(file, `#!/bin/sh\n${script}\n`)
    chmodSync(file, 0o755)
  }

  test.each(['check', 'run', 'test', 'bench'])(
    'does nothing and prints nothing for %s when nothing is missing',
    (purpose) => {
      const { setup, calls } = makeCheckout()
      setup(purpose)
      expect(setup(purpose)).toMatchObject({ status: 0, stdout: '', stderr: '' })
      expect(calls()).toBe('')
    },
  )

  test('prints the exact command for an unprivileged user', () => {
    const { setup, calls } = makeCheckout(['s6-svscan'])
    const { status, stderr } = setup('test', nobody)
    expect(status).toBe(1)
    expect(stderr).toMatch(/^Berth needs packages that are not installed\. Run: sudo apt-get install -y s6\b.*\n$/)
    expect(calls()).toBe('')
    expect(setup('check', nobody)).toMatchObject({ status: 0, stderr: '' })
  })

  test('lists the missing programs on a system without apt-get', () => {
    const { setup } = makeCheckout(['s6-svscan', 'apt-get'])
    const { status, stderr } = setup('run', nobody)
    expect(status).toBe(1)
    expect(stderr).toContain('which were not found: s6-svscan')
  })

  test('installs npm packages once for a changed lockfile', () => {
    const { setup, calls } = makeCheckout()
    setup('check')
    writeFileSync(`${directory}/package-lock.json`, '{"changed":true}')
    expect(setup('check')).toMatchObject({ status: 0, stderr: '' })
    expect(calls()).toMatch(/^npm ci .*\n$/)
    expect(setup('check')).toMatchObject({ status: 0, stdout: '' })
    expect(calls()).toMatch(/^npm ci .*\n$/)
  })

  test('installs npm packages again when the lockfile is newer', () => {
    const { setup, calls } = makeCheckout()
    utimesSync(`${directory}/node_modules/.package-lock.json`, 0, 0)
    expect(setup('check')).toMatchObject({ status: 0, stderr: '' })
    expect(calls()).toMatch(/^npm ci /)
  })

  test('falls back to npm install when the lockfile lacks packages of this platform', () => {
    const { setup, calls, writeProgram: replace } = makeCheckout()
    rmSync(`${directory}/node_modules/.package-lock.json`)
    replace(
      'npm',
      `echo "npm $*" >>${directory}/calls; if [ "$1" = ci ]; then echo "npm error code EUSAGE"; exit 1; fi`,
    )
    expect(setup('check')).toMatchObject({ status: 0, stderr: '' })
    expect(calls()).toMatch(/^npm ci .*\nnpm install --no-save .*\n$/)
  })

  test('shows the output of npm when it fails, and retries the next time', () => {
    const { setup, writeProgram: replace } = makeCheckout()
    rmSync(`${directory}/node_modules/.package-lock.json`)
    replace('npm', 'echo "the network is away" >&2; exit 1')
    for (const { status, stderr } of [setup('check'), setup('check')]) {
      expect(status).toBe(1)
      expect(stderr).toBe('the network is away\nCould not install the npm packages: see the error above.\n')
    }
  })

  test('rejects an unknown purpose', () => {
    expect(makeCheckout().setup('')).toMatchObject({ status: 1, stderr: expect.stringContaining('Usage') })
  })
})
