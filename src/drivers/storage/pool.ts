import { supportsReflink } from '../host/filesystem.ts'
import { withLock } from '../host/lock.ts'
import { isRoot, run } from '../host/process.ts'
import { StorageError } from './driver.ts'
import { formats } from './file-system.ts'
import { completePool, unmount } from './mount.ts'
import { findMountAt, findMountOf } from './mount-table.ts'
import { storageQuota } from './quota.ts'
import { poolPaths, readRecord } from './record.ts'
import { measureSpace, type Space } from './space.ts'

export interface StorageReport extends Space {
  home: string
  /** Whether the home has a pool of its own. */
  pool: boolean
  mounted: boolean
  fileSystem: string
  /** The device or image file of the pool. */
  source: string | null
  /** Whether the size of clusters, sandboxes and machines can be limited. */
  limits: boolean
  /** Whether copies share blocks. */
  reflinks: boolean
}

/** Describes the file system of the home. An unmounted pool is described without its use. */
export async function inspectStorage(home: string): Promise<StorageReport> {
  const record = readRecord(home)
  const hasPool = record?.step === 'ready' || record?.step === 'cleaning'
  const space = await measureSpace(home)
  if (record && hasPool) {
    const mounted = record.isInside
    return {
      home,
      pool: true,
      mounted,
      fileSystem: record.fileSystem,
      source: record.device ?? poolPaths(home).image,
      ...(mounted ? space : { totalBytes: 0, usedBytes: 0, freeBytes: 0 }),
      limits: true,
      reflinks: formats[record.fileSystem].reflinks,
    }
  }
  return {
    home,
    pool: false,
    mounted: false,
    fileSystem: findMountOf(home)?.fileSystem ?? 'unknown',
    source: null,
    ...space,
    limits: await storageQuota({ path: home }).isPossible(),
    reflinks: (await supportsReflink(home)) ?? false,
  }
}

/** Grows a pool: an image file to a size, a device to the size that it has. Can be interrupted and run again. */
export async function growPool(home: string, sizeBytes: number | undefined): Promise<StorageReport> {
  if (!isRoot()) throw new StorageError('only root can grow a storage pool')
  const found = readRecord(home)
  if (!found || found.step === 'creating' || found.step === 'copying')
    throw new StorageError(`${home} has no storage pool; "berth storage create" creates one`)
  if (found.device !== null && sizeBytes !== undefined)
    throw new StorageError('grow the device first, then run this without --size')
  if (found.device === null && sizeBytes === undefined) throw new StorageError('a pool in a file grows to a --size')
  return withLock(poolPaths(home).lock, async () => {
    const wasMounted = readRecord(home)!.isInside
    if (!wasMounted) await completePool(home, readRecord(home)!)
    try {
      const { source } = findMountAt(home)!
      if (sizeBytes !== undefined) await growImage(home, source, sizeBytes, found.sparse)
      await run(...formats[found.fileSystem].grow(source, home), { timeoutSeconds: 600 })
      return await inspectStorage(home)
    } finally {
      if (!wasMounted) await unmount(home)
    }
  })
}

/**
 * The image is hidden by the pool that is mounted over its directory. It is resized in a mount namespace that does not
 * have this mount.
 */
async function growImage(home: string, device: string, sizeBytes: number, sparse: boolean): Promise<void> {
  const { stdout } = await run('blockdev', ['--getsize64', device])
  const current = Number(stdout.trim())
  if (sizeBytes < current)
    throw new StorageError(`the pool has ${Math.ceil(current / 1024 ** 2)} MB and cannot become smaller`)
  const allocate = sparse ? 'truncate -s' : 'fallocate -l'
  const script = `umount -l "$1" && ${allocate} "$2" "$3"`
  await run('unshare', [
    ...['--mount', '--propagation', 'private', 'sh', '-c', script, 'grow'],
    ...[home, String(sizeBytes), poolPaths(home).image],
  ]).catch((cause: Error) => {
    throw new StorageError(`grow ${poolPaths(home).image}: ${cause.message}`, { cause })
  })
  await run('losetup', ['--set-capacity', device])
}
