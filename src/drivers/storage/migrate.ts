// Copies a home into its storage pool. The platform must be stopped. The home is copied in units, such as one cluster or
// one top-level directory: each gets its name in the pool only when its copy is complete, verified and durable. So an
// interrupted copy continues with the unit that it was in.
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  renameSync,
  rmSync,
  type Stats,
} from 'node:fs'
import { basename, dirname } from 'node:path'
import { run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import type { PoolFileSystem } from './driver.ts'
import { makeLimitable, prepareUnit } from './subvolume.ts'

export interface MigrationProgress {
  /** The path of the unit that is being copied, relative to the home. */
  unit: string
  done: number
  units: number
}

/** Directories whose entries are copied one by one. No hard link leads from one entry to another. */
const splitDirectories = ['clusters', 'repository', 'sandbox', 'machine', 'volume']
const poolDirectory = 'pool'
const temporaryPrefix = '.copy~'
const copyTimeoutSeconds = 7 * 24 * 3600

export async function copyHome(
  home: string,
  pool: string,
  fileSystem: PoolFileSystem,
  onProgress: (progress: MigrationProgress) => void,
): Promise<void> {
  copyOwner(lstatSync(home), pool)
  const units = listUnits(home)
  for (const [done, unit] of units.entries()) {
    onProgress({ unit, done, units: units.length })
    await copyUnit(`${home}/${unit}`, `${pool}/${unit}`, unit, fileSystem)
  }
  for (const name of splitDirectories.filter((each) => isDirectory(`${home}/${each}`)))
    copyContainer(`${home}/${name}`, `${pool}/${name}`)
  await run('sync', ['-f', pool], { timeoutSeconds: copyTimeoutSeconds })
}

/** Lists what is copied at once, as paths relative to the home. */
function listUnits(home: string): string[] {
  return readdirSync(home)
    .filter((name) => name !== poolDirectory)
    .flatMap((name) =>
      splitDirectories.includes(name) && isDirectory(`${home}/${name}`)
        ? readdirSync(`${home}/${name}`).map((entry) => `${name}/${entry}`)
        : [name],
    )
}

async function copyUnit(source: string, target: string, unit: string, fileSystem: PoolFileSystem): Promise<void> {
  if (lstatSync(target, { throwIfNoEntry: false })) return
  if (unit.includes('/')) copyContainer(dirname(source), dirname(target))
  const fresh = `${dirname(target)}/${temporaryPrefix}${basename(target)}`
  await removeTree(fresh)
  if (fileSystem === 'btrfs') await prepareUnit(fresh, unit)
  await copyTree(source, fresh)
  await runUntilExit('perl', driverProgram('storage/verify.pl'), source, fresh)
  if (fileSystem === 'btrfs') await makeLimitable(fresh, unit)
  // Without its version, the platform starts a machine anew, with a configuration that has the limits of the pool.
  if (unit.startsWith('machine/')) rmSync(`${fresh}/version`, { force: true })
  await runUntilExit('sync', '-f', dirname(target))
  renameSync(fresh, target)
}

/** Unlike `cp -a`, this fails when an extended attribute cannot be copied. */
function copyTree(source: string, target: string): Promise<void> {
  return runUntilExit('cp', '-dRT', '--preserve=mode,ownership,timestamps,links,xattr', '--', source, target)
}

/** Runs a program that ends with this process, so that no copy of an interrupted migration interferes with the next one. */
async function runUntilExit(program: string, ...args: string[]): Promise<void> {
  await run('setpriv', ['--pdeathsig', 'KILL', program, ...args], { timeoutSeconds: copyTimeoutSeconds })
}

function copyContainer(source: string, target: string): void {
  mkdirSync(target, { recursive: true })
  copyOwner(lstatSync(source), target)
}

function copyOwner({ uid, gid, mode }: Stats, target: string): void {
  chownSync(target, uid, gid)
  chmodSync(target, mode & 0o7777)
}

function isDirectory(path: string): boolean {
  return lstatSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false
}

async function removeTree(path: string): Promise<void> {
  if (lstatSync(path, { throwIfNoEntry: false })) await runUntilExit('rm', '-rf', '--one-file-system', '--', path)
}

/** Deletes everything in the home that has been copied to the pool. The pool must not be mounted over it. */
export async function removeOriginals(home: string): Promise<void> {
  if (!existsSync(`${home}/${poolDirectory}/pool.json`)) throw new Error(`${home} has no storage pool`)
  for (const name of readdirSync(home).filter((each) => each !== poolDirectory)) {
    // The number tells other homes on this host that this one exists, also while the pool is not mounted.
    if (name === 'number') continue
    const path = `${home}/${name}`
    if (lstatSync(path).isDirectory()) await runUntilExit('rm', '-rf', '--one-file-system', '--', path)
    else rmSync(path)
  }
}
