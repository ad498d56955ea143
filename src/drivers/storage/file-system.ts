// The file systems that a pool can have, by preference. All of them can limit the size of directories; XFS and Btrfs can
// also share blocks between copies. What a kernel supports is found by trying it, because a kernel may have a file system
// without its quotas.
import { randomUUID } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { commandExists, run } from '../host/process.ts'
import { type PoolFileSystem, poolFileSystems, StorageError } from './driver.ts'

interface Format {
  package: string
  /** The programs that creating, limiting and growing need. */
  programs: string[]
  make(target: string, id: string): [string, string[]]
  options: string
  /** Added for a sparse image, whose free blocks are returned to the disk. */
  discard: string
  /** Added for a preallocated image, whose blocks must stay allocated. */
  keep: string
  grow(device: string, mountPoint: string): [string, string[]]
  reflinks: boolean
}

/** Discarding blocks while formatting is turned off, because it would deallocate a preallocated image. */
export const formats: Record<PoolFileSystem, Format> = {
  xfs: {
    package: 'xfsprogs',
    programs: ['mkfs.xfs', 'xfs_quota', 'xfs_growfs'],
    make: (target, id) => ['mkfs.xfs', ['-q', '-f', '-K', '-m', `reflink=1,uuid=${id}`, target]],
    options: 'prjquota',
    discard: 'discard',
    keep: 'nodiscard',
    grow: (_, mountPoint) => ['xfs_growfs', [mountPoint]],
    reflinks: true,
  },
  btrfs: {
    package: 'btrfs-progs',
    programs: ['mkfs.btrfs', 'btrfs'],
    make: (target, id) => ['mkfs.btrfs', ['-q', '-f', '-K', '-U', id, target]],
    // Databases and images of volumes overwrite blocks in place, which copy on write would make slow and fragmented.
    // Blocks can be shared only between files that are all with or all without it, so that it is off for all.
    options: 'nodatacow',
    discard: 'discard=async',
    keep: 'nodiscard',
    grow: (_, mountPoint) => ['btrfs', ['filesystem', 'resize', 'max', mountPoint]],
    reflinks: true,
  },
  ext4: {
    package: 'e2fsprogs xfsprogs quota',
    programs: ['mkfs.ext4', 'xfs_quota', 'resize2fs'],
    make: (target, id) => [
      'mkfs.ext4',
      ['-q', '-F', '-m', '0', '-U', id, '-O', 'quota,project', '-E', 'quotatype=prjquota,nodiscard', target],
    ],
    options: 'prjquota',
    discard: 'discard',
    keep: 'nodiscard',
    grow: (device) => ['resize2fs', [device]],
    reflinks: false,
  },
}

export async function makeFileSystem(target: string, fileSystem: PoolFileSystem, id: string): Promise<void> {
  await run(...formats[fileSystem].make(target, id), { timeoutSeconds: 600 })
}

export function mountOptions(fileSystem: PoolFileSystem, image: { sparse: boolean } | undefined): string {
  const { options, discard, keep } = formats[fileSystem]
  if (!image) return options
  return `${options},${image.sparse ? discard : keep}`
}

/** Chooses the first file system that this host can create and mount with quotas, or checks the given one. */
export async function chooseFileSystem(
  asked: PoolFileSystem | undefined,
): Promise<{ fileSystem: PoolFileSystem; rejected: string[] }> {
  const rejected: string[] = []
  for (const fileSystem of asked ? [asked] : poolFileSystems) {
    const reason = await findObstacle(fileSystem)
    if (reason === undefined) return { fileSystem, rejected }
    rejected.push(`${fileSystem}: ${reason}`)
  }
  throw new StorageError(`this host cannot create a storage pool: ${rejected.join('; ')}`)
}

// The least size that mkfs.xfs accepts is 300 MB. The image is sparse.
const probeBytes = 512 * 1024 ** 2

/**
 * Returns why a file system cannot be used, found by mounting a small one. The mount is in a namespace that ends with its
 * process, so that nothing stays mounted when this process is killed.
 */
async function findObstacle(fileSystem: PoolFileSystem): Promise<string | undefined> {
  const { programs, package: packages, options } = formats[fileSystem]
  const missing = programs.filter((program) => !commandExists(program))
  if (missing.length > 0) return `${missing.join(' and ')} not found; apt-get install -y ${packages}`
  const probe = mkdtempSync(join(tmpdir(), 'berth-probe-'))
  const [image, mountPoint] = [`${probe}/image`, `${probe}/mount`]
  try {
    mkdirSync(mountPoint)
    writeFileSync(image, '')
    truncateSync(image, probeBytes)
    await makeFileSystem(image, fileSystem, randomUUID())
    const check = fileSystem === 'btrfs' ? 'btrfs quota enable "$4"' : ':'
    const script = `mount -t "$1" -o "loop,$2" "$3" "$4" && ${check}`
    const words = ['sh', '-c', script, 'probe', fileSystem, options, image, mountPoint]
    await run('unshare', ['--mount', '--propagation', 'private', ...words])
    return undefined
  } catch (error) {
    return `cannot be mounted with quotas by this kernel (${firstLine((error as Error).message)})`
  } finally {
    rmSync(probe, { recursive: true, force: true })
  }
}

function firstLine(text: string): string {
  return text.split('\n')[0]!.replace(/^unshare exited with \d+: mount: \S+ /, '')
}
