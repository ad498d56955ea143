// Homes that are moved to a storage pool with the command line.
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  linkSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs'
import { temporaryDirectory } from '../temporary-home.ts'

const launcher = new URL('../../../berth', import.meta.url).pathname

export interface PoolHome {
  path: string
  start(...args: string[]): ChildProcess
  run(...args: string[]): { status: number | null; stdout: string; stderr: string }
  /** The step in the record of the pool; undefined if there is none. */
  step(): string | undefined
  /** Attaches a sparse file outside of the home as a block device. */
  attachDevice(megabytes: number): string
  remove(): void
}

export function poolHome(): PoolHome {
  const outer = temporaryDirectory()
  const path = `${outer}/home`
  mkdirSync(path, { mode: 0o711 })
  const options = { env: { PATH: process.env.PATH ?? '', HOME: '/', BERTH_HOME: path }, encoding: 'utf8' as const }
  const devices: string[] = []
  return {
    path,
    start: (...args) => spawn(launcher, args, { env: options.env, stdio: ['ignore', 'ignore', 'pipe'] }),
    run: (...args) => spawnSync(launcher, args, options),
    step() {
      try {
        return JSON.parse(readFileSync(`${path}/pool/pool.json`, 'utf8')).step
      } catch {
        return undefined
      }
    },
    attachDevice(megabytes) {
      const file = `${outer}/device-${devices.length}`
      writeFileSync(file, '')
      truncateSync(file, megabytes * 1024 ** 2)
      const device = execFileSync('losetup', ['--find', '--show', file], { encoding: 'utf8' }).trim()
      devices.push(device)
      return device
    },
    remove() {
      for (const mountPoint of [`${path}/pool/mount`, path]) spawnSync('umount', [mountPoint])
      for (const device of devices) spawnSync('losetup', ['--detach', device])
      rmSync(outer, { recursive: true, force: true })
    },
  }
}

/** Fills a home with files of every kind that a move has to keep. */
export function fillHome(home: string, megabytes = 8): void {
  for (const name of [
    'clusters/abcdefghijklmnop/data/base',
    'repository/abcdefghijklmnop/backup',
    'volume',
    'log',
    'run/control',
  ])
    mkdirSync(`${home}/${name}`, { recursive: true })
  chmodSync(`${home}/run/control`, 0o700)
  const content = Buffer.alloc(1024 ** 2, 'x')
  for (let nth = 0; nth < megabytes; nth++) {
    content.write(`${nth}`)
    writeFileSync(`${home}/clusters/abcdefghijklmnop/data/base/${nth}`, content)
    writeFileSync(`${home}/repository/abcdefghijklmnop/backup/${nth}`, content)
  }
  chownSync(`${home}/clusters/abcdefghijklmnop/data`, 300_123, 300_123)
  writeFileSync(`${home}/volume/sparse`, 'start')
  truncateSync(`${home}/volume/sparse`, 64 * 1024 ** 2)
  writeFileSync(`${home}/log/file \\ with\nodd name`, 'odd', { mode: 0o4755 })
  linkSync(`${home}/log/file \\ with\nodd name`, `${home}/log/linked`)
  symlinkSync('/nowhere', `${home}/log/link`)
  execFileSync('mkfifo', [`${home}/log/fifo`])
  execFileSync('mknod', [`${home}/log/whiteout`, 'c', '0', '0'])
}

/** Describes every file below a directory but those of the pool itself. */
export function describeTree(directory: string): string {
  const script = `cd "$1" && find . -path ./pool -prune -o -type d -printf '%p d %m %U %G\\n' -o -printf '%p %y %m %U %G %s %n %l\\n' | LC_ALL=C sort
    find . -path ./pool -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum`
  return execFileSync('sh', ['-c', script, 'describe', directory], { encoding: 'utf8' })
}
