import { randomBytes } from 'node:crypto'
import { accessSync, constants, statSync } from 'node:fs'
import { mkdir, rm, statfs, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { run } from './process.ts'

const probeTimeoutSeconds = 1.5

/** Whether copies can share blocks, found by copying a file; undefined if the directory is not writable. */
export async function supportsReflink(directory: string): Promise<boolean | undefined> {
  const probe = `${directory}/.berth-probe~${randomBytes(6).toString('hex')}`
  try {
    await mkdir(probe, { mode: 0o700 })
  } catch {
    return undefined
  }
  try {
    await writeFile(`${probe}/original`, 'x'.repeat(4096))
    await run('cp', ['--reflink=always', `${probe}/original`, `${probe}/copy`], { timeoutSeconds: probeTimeoutSeconds })
    return true
  } catch {
    return false
  } finally {
    await rm(probe, { recursive: true, force: true })
  }
}

export interface Space {
  /** The space that is left for ordinary users. */
  freeBytes: number
  totalBytes: number
}

export async function measureDisk(path: string): Promise<Space | undefined> {
  const found = await statfs(path).catch(() => undefined)
  return found && { freeBytes: found.bavail * found.bsize, totalBytes: found.blocks * found.bsize }
}

/** Returns undefined if one of the paths does not exist. */
export function areOnSameDevice(a: string, b: string): boolean | undefined {
  const [first, second] = [a, b].map((path) => statSync(path, { throwIfNoEntry: false }))
  return first && second && first.dev === second.dev
}

/** Returns the path or, if it does not exist, the nearest directory above it that does. */
export function nearestExisting(path: string): string {
  let candidate = path
  while (!exists(candidate) && candidate !== '/') candidate = dirname(candidate)
  return candidate
}

// existsSync would return false as well for a path that this user may not look up.
function exists(path: string): boolean {
  try {
    return statSync(path, { throwIfNoEntry: false }) !== undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ENOTDIR'
  }
}

export function canWrite(path: string): boolean {
  try {
    accessSync(path, constants.W_OK)
    return true
  } catch {
    return false
  }
}
