import { spawnSync } from 'node:child_process'
import { chmodSync, mkdirSync, rmSync } from 'node:fs'
import { temporaryDirectory } from '../temporary-home.ts'

export interface Filesystem {
  /** An empty directory that other users can traverse. */
  directory: string
  remove(): void
}

const megabytes = 1024

/** Mounts an XFS with reflinks from an image file. Returns undefined if this host cannot mount it. */
export function mountXfs(): Filesystem | undefined {
  const outer = temporaryDirectory()
  const [image, mountPoint] = [`${outer}/image`, `${outer}/m`]
  mkdirSync(mountPoint)
  const commands = [
    ['truncate', '-s', `${megabytes}M`, image],
    ['mkfs.xfs', '-q', '-m', 'reflink=1', image],
    ['mount', '-o', 'loop', image, mountPoint],
  ]
  const remove = () => {
    // A background process may still be deleting files, so this unmounts lazily.
    spawnSync('umount', ['-l', mountPoint])
    rmSync(outer, { recursive: true, force: true })
  }
  for (const [command, ...args] of commands) {
    if (spawnSync(command!, args).status === 0) continue
    remove()
    return undefined
  }
  const directory = `${mountPoint}/d`
  mkdirSync(directory)
  for (const path of [mountPoint, directory]) chmodSync(path, 0o711)
  return { directory, remove }
}
