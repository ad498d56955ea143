// Mounts the storage pool over the home. Every command that opens the home does this first, so that the pool is there
// after a reboot and nothing is ever written below it.
import { existsSync, lstatSync, mkdirSync, realpathSync, rmSync } from 'node:fs'
import { resolve } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import { withLock } from '../host/lock.ts'
import { isRoot, run } from '../host/process.ts'
import { StorageError } from './driver.ts'
import { mountOptions } from './file-system.ts'
import { attachLoop, releaseLoop } from './loop.ts'
import { removeOriginals } from './migrate.ts'
import { findMountAt } from './mount-table.ts'
import { type PoolRecord, poolPaths, readRecord, writeRecord } from './record.ts'

const busyTimeoutSeconds = 30

/**
 * Mounts the pool of a home unless it is mounted; returns false if there is none. A pool whose creation was interrupted
 * before the home was copied is given up, because the original is about to change.
 */
export async function mountPool(path: string): Promise<boolean> {
  const home = realHome(path)
  const found = readRecord(home)
  if (!found) return false
  if (found.isInside) return true
  if (!isRoot()) throw new StorageError(`the storage pool of ${home} is not mounted, and only root can mount it`)
  return withLock(poolPaths(home).lock, async () => {
    const record = readRecord(home)
    if (!record) return false
    if (record.isInside) return true
    if (record.step === 'creating' || record.step === 'copying') {
      await abandonPool(home, record)
      return false
    }
    await completePool(home, record)
    return true
  })
}

/** True if the home is in a pool that is not mounted, so that nothing of it can be running. */
export function isPoolUnmounted(path: string): boolean {
  const record = readRecord(realHome(path))
  return record !== undefined && !record.isInside && ['cleaning', 'ready'].includes(record.step)
}

/** Unmounts the pool if it is mounted. Processes that use it must have ended; their last files may be closed a bit later. */
export async function unmountPool(path: string): Promise<void> {
  const home = realHome(path)
  if (!readRecord(home)?.isInside) return
  await withLock(poolPaths(home).lock, () => unmount(home))
}

export async function unmount(mountPoint: string): Promise<void> {
  let problem: Error | undefined
  const isGone = async () => {
    if (!findMountAt(mountPoint)) return true
    problem = await run('umount', [mountPoint]).then(
      () => undefined,
      (error: Error) => error,
    )
    return problem === undefined
  }
  if (await waitUntil(isGone, busyTimeoutSeconds)) return
  throw new StorageError(
    `${mountPoint} is in use and stays mounted; to see by which processes: fuser -vm ${mountPoint}`,
    { cause: problem },
  )
}

/** Finishes the deletion of what was copied to the pool, and mounts the pool over the home. */
export async function completePool(home: string, record: PoolRecord): Promise<void> {
  const paths = poolPaths(home)
  if (findMountAt(paths.mount)) await unmount(paths.mount)
  if (record.step === 'cleaning') {
    await removeOriginals(home)
    writeRecord(home, { ...record, step: 'ready' })
  }
  await mountFileSystem(home, record, home)
  const inside = readRecord(home)
  if (inside?.isInside && inside.id === record.id) return
  await unmount(home)
  throw new StorageError(`the file system at ${record.device ?? paths.image} is not the storage pool of ${home}`)
}

/** Mounts the file system of the pool at a directory. */
export async function mountFileSystem(home: string, record: PoolRecord, mountPoint: string): Promise<void> {
  mkdirSync(mountPoint, { recursive: true })
  const { device, fileSystem, sparse } = record
  const options = mountOptions(fileSystem, device === null ? { sparse } : undefined)
  const source = device === null ? await attachLoop(poolPaths(home).image) : await findDevice(device, record.id)
  try {
    await run('mount', ['-t', fileSystem, '-o', options, source, mountPoint], { timeoutSeconds: 600 })
  } catch (cause) {
    throw new StorageError(`mount the storage pool of ${home}: ${(cause as Error).message}`, { cause })
  } finally {
    if (device === null) await releaseLoop(source)
  }
}

/** Device names may change with a reboot, so the UUID decides. */
async function findDevice(device: string, id: string): Promise<string> {
  const uuidOf = (path: string) =>
    run('blkid', ['-p', '-s', 'UUID', '-o', 'value', path]).then(
      ({ stdout }) => stdout.trim(),
      () => undefined,
    )
  if (existsSync(device) && (await uuidOf(device)) === id) return device
  const { stdout } = await run('blkid', ['-U', id]).catch(() => ({ stdout: '' }))
  if (stdout.trim() !== '') return stdout.trim()
  throw new StorageError(`no device holds the storage pool ${id}, which was created on ${device}`)
}

/** Removes an incomplete pool. The record of a device stays, so that the next attempt may format it again. */
export async function abandonPool(home: string, record: PoolRecord): Promise<void> {
  const paths = poolPaths(home)
  if (findMountAt(paths.mount)) await unmount(paths.mount)
  rmSync(paths.image, { force: true })
  if (record.device === null) rmSync(paths.directory, { recursive: true, force: true })
  else writeRecord(home, { ...record, step: 'creating' })
}

/** Resolves links as the home itself does, so that mount points have the paths that the kernel reports. */
export function realHome(path: string): string {
  const home = resolve(path)
  return lstatSync(home, { throwIfNoEntry: false }) ? realpathSync(home) : home
}
