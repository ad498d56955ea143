import { execFileSync } from 'node:child_process'
import { chmodSync, mkdirSync, rmSync } from 'node:fs'
import { temporaryDirectory } from '../temporary-home.ts'
import { until } from '../until.ts'

export interface Place {
  /** Creates an empty directory on the filesystem. */
  make(): string
  remove(): void | Promise<void>
}

/** A btrfs in a loop-mounted file. */
export function btrfs(): Place {
  return loopMounted('mkfs.btrfs', '1G')
}

/** An ext4 in a loop-mounted file, small enough to be filled. A part of it is for root alone. */
export function smallExt4(): Place {
  return loopMounted('mkfs.ext4', '256M')
}

function loopMounted(program: string, size: string): Place {
  const outside = temporaryDirectory()
  const mount = `${outside}/m`
  return {
    make() {
      mkdirSync(mount)
      execFileSync('truncate', ['-s', size, `${outside}/image`])
      execFileSync(program, ['-q', `${outside}/image`])
      execFileSync('mount', ['-o', 'loop', `${outside}/image`, mount])
      mkdirSync(`${mount}/d`)
      chmodSync(`${mount}/d`, 0o711)
      chmodSync(mount, 0o711)
      return `${mount}/d`
    },
    async remove() {
      // A background process may still be deleting the trash.
      await until(() => isUnmounted(mount) || tryUnmount(mount), 30)
      rmSync(outside, { recursive: true, force: true })
    },
  }
}

function isUnmounted(mount: string): boolean {
  return !execFileSync('mount', { encoding: 'utf8' }).includes(` ${mount} `)
}

function tryUnmount(mount: string): boolean {
  try {
    execFileSync('umount', [mount], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}
