// Creates the storage pool of a home and moves the home into it. The record says how far this has come. It can be
// interrupted anywhere and run again; the original stays in use until the copy is complete, verified and durable.
import { randomUUID } from 'node:crypto'
import { existsSync, mkdirSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { withLock } from '../host/lock.ts'
import { isRoot, run } from '../host/process.ts'
import { inspectDevice } from './device.ts'
import { type PoolFileSystem, StorageError } from './driver.ts'
import { chooseFileSystem, makeFileSystem } from './file-system.ts'
import { copyHome, type MigrationProgress } from './migrate.ts'
import { abandonPool, completePool, mountFileSystem, unmount } from './mount.ts'
import { findMountAt, findMountOf, listMounts } from './mount-table.ts'
import { type PoolRecord, poolPaths, readRecord, writeRecord } from './record.ts'
import { measureSpace } from './space.ts'

export interface PoolRequest {
  sizeBytes?: number | undefined
  device?: string | undefined
  fileSystem?: PoolFileSystem | undefined
  sparse: boolean
  /** Formats a device that holds data. */
  force: boolean
}

export interface PoolPlan {
  device: string | null
  image: string | null
  fileSystem: PoolFileSystem
  sizeBytes: number
  /** What the home occupies now. */
  usedBytes: number
  sparse: boolean
  /** True if an interrupted copy is continued. */
  resumes: boolean
  /** Why file systems that would be preferred cannot be used. */
  rejected: string[]
}

export interface CreateSteps {
  /** Stops everything that uses the home, or throws. */
  stop(): Promise<void>
  onProgress(progress: MigrationProgress): void
}

const gigabyte = 1024 ** 3
const minBytes = 512 * 1024 ** 2
/** A default size leaves this part of the free space to others. */
const defaultFraction = 0.8
/** The copy needs more space than the original: metadata, and blocks that were shared. */
const growthFactor = 1.1

/** Checks a request without changing anything. */
export async function planPool(home: string, request: PoolRequest): Promise<PoolPlan> {
  if (!isRoot()) throw new StorageError('only root can create a storage pool')
  const record = readRecord(home)
  if (record?.isInside) throw new StorageError(`${home} has a storage pool already; "berth storage show" describes it`)
  refuseMountsBelow(home)
  const usedBytes = await measureHome(home)
  if (record && record.step !== 'creating') return { ...resumedPlan(home, record, request), usedBytes }
  const image = request.device === undefined ? poolPaths(home).image : null
  const device = request.device === undefined ? undefined : await inspectDevice(request.device)
  if (device?.content && !request.force && record?.device !== request.device)
    throw new StorageError(`${request.device} holds ${device.content}; --force deletes it`)
  const sizeBytes = device ? deviceSize(request, device.sizeBytes) : await imageSize(home, request)
  const neededBytes = Math.max(minBytes, usedBytes * growthFactor + minBytes / 2)
  if (sizeBytes < neededBytes)
    throw new StorageError(`a storage pool for this home needs at least ${Math.ceil(neededBytes / 1024 ** 2)} MB`)
  const { fileSystem, rejected } = await chooseFileSystem(preferred(home, request))
  const sparse = image !== null && request.sparse
  return { device: request.device ?? null, image, fileSystem, sizeBytes, usedBytes, sparse, resumes: false, rejected }
}

function resumedPlan(home: string, record: PoolRecord, request: PoolRequest): Omit<PoolPlan, 'usedBytes'> {
  const { device, fileSystem, sparse } = record
  const isOther = request.device !== undefined && request.device !== device
  if (isOther || request.sizeBytes !== undefined)
    throw new StorageError(
      `a move to ${device ?? poolPaths(home).image} was interrupted; run this without --size and --device to continue it`,
    )
  const image = device === null ? poolPaths(home).image : null
  const sizeBytes = image === null ? 0 : statSync(image).size
  return { device, image, fileSystem, sizeBytes, sparse, resumes: true, rejected: [] }
}

/** Checkpoints of a home on Btrfs are snapshots, which no other file system has. */
function preferred(home: string, request: PoolRequest): PoolFileSystem | undefined {
  if (!existsSync(home) || findMountOf(home)?.fileSystem !== 'btrfs') return request.fileSystem
  if (request.fileSystem && request.fileSystem !== 'btrfs')
    throw new StorageError('the home is on Btrfs, and its checkpoints can only be moved to another Btrfs')
  return 'btrfs'
}

function refuseMountsBelow(home: string): void {
  const other = listMounts().find(
    ({ mountPoint }) => mountPoint.startsWith(`${home}/`) && mountPoint !== poolPaths(home).mount,
  )
  if (!other) return
  throw new StorageError(
    `${other.mountPoint} is a mount point below the home; unmount it, and use BERTH_REPOSITORY for backups on another disk`,
  )
}

function deviceSize(request: PoolRequest, sizeBytes: number): number {
  if (request.sizeBytes !== undefined)
    throw new StorageError('a pool on a device has the size of the device; omit --size')
  return sizeBytes
}

async function imageSize(home: string, request: PoolRequest): Promise<number> {
  const { freeBytes } = await measureSpace(home)
  const sizeBytes = request.sizeBytes ?? Math.floor((freeBytes * defaultFraction) / gigabyte) * gigabyte
  if (sizeBytes <= freeBytes || request.sparse) return sizeBytes
  throw new StorageError(
    `the disk of ${home} has ${Math.floor(freeBytes / 1024 ** 2)} MB of free space; use a smaller --size or --device`,
  )
}

async function measureHome(home: string): Promise<number> {
  if (!existsSync(home)) return 0
  // du fails for files that disappear meanwhile, because the platform may still be running.
  const script = 'du -sx -B1 --exclude="$1" -- "$2" 2>/dev/null || true'
  const { stdout } = await run('sh', ['-c', script, 'measure', poolPaths(home).directory, home], {
    timeoutSeconds: 3600,
  })
  return Number.parseInt(stdout, 10)
}

/** Creates the pool and mounts it over the home, which is copied to it first. */
export async function createPool(home: string, plan: PoolPlan, steps: CreateSteps): Promise<PoolRecord> {
  mkdirSync(home, { recursive: true })
  return withLock(
    poolPaths(home).lock,
    async () => {
      const record = plan.resumes ? readRecord(home)! : await prepareRecord(home, plan)
      try {
        await steps.stop()
        return await fillPool(home, plan, record, steps)
      } catch (error) {
        // A copy that fails may continue after the reason is gone; anything before it starts again.
        if (readRecord(home)?.step === 'creating') await abandonPool(home, record)
        throw error
      }
    },
    1,
  ).catch((error: Error) => {
    if (!error.message.startsWith('lock ')) throw error
    throw new StorageError(`another command is working on the storage pool of ${home}`, { cause: error })
  })
}

/** The record comes first, so that a platform that starts meanwhile waits for the lock. */
async function prepareRecord(home: string, { device, fileSystem, sparse }: PoolPlan): Promise<PoolRecord> {
  const found = readRecord(home)
  if (found) await abandonPool(home, found)
  const record: PoolRecord = { id: randomUUID(), fileSystem, device, sparse, step: 'creating', isInside: false }
  writeRecord(home, record)
  return record
}

async function fillPool(home: string, plan: PoolPlan, record: PoolRecord, steps: CreateSteps): Promise<PoolRecord> {
  const { mount } = poolPaths(home)
  if (record.step === 'cleaning' || record.step === 'ready') {
    await completePool(home, record)
    return readRecord(home)!
  }
  if (!plan.resumes) {
    await makeTarget(home, plan, record)
    writeRecord(home, { ...record, step: 'copying' })
  }
  if (!findMountAt(mount)) await mountFileSystem(home, record, mount)
  await copyHome(home, mount, record.fileSystem, steps.onProgress)
  writeRecord(mount, { ...record, step: 'ready', isInside: true })
  await run('sync', ['-f', mount], { timeoutSeconds: 3600 })
  // From here on the copy counts.
  const complete: PoolRecord = { ...record, step: 'cleaning' }
  writeRecord(home, complete)
  await completePool(home, complete)
  return readRecord(home)!
}

async function makeTarget(home: string, plan: PoolPlan, record: PoolRecord): Promise<void> {
  const { image, mount } = poolPaths(home)
  if (findMountAt(mount)) await unmount(mount)
  if (record.device !== null) {
    await run('wipefs', ['--all', record.device])
    return makeFileSystem(record.device, record.fileSystem, record.id)
  }
  rmSync(image, { force: true })
  writeFileSync(image, '', { mode: 0o600 })
  await resizeImage(image, plan.sizeBytes, plan.sparse)
  await makeFileSystem(image, record.fileSystem, record.id)
}

async function resizeImage(image: string, sizeBytes: number, sparse: boolean): Promise<void> {
  if (sparse) return truncateSync(image, sizeBytes)
  try {
    await run('fallocate', ['-l', String(sizeBytes), image], { timeoutSeconds: 3600 })
  } catch (cause) {
    throw new StorageError(`allocate ${image}; a sparse image (--sparse) needs no allocation`, { cause })
  }
}
