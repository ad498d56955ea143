import { closeSync, constants, openSync, readFileSync, statSync } from 'node:fs'
import { basename } from 'node:path'
import { waitUntil } from '../../model/poll.ts'
import { run } from '../host/process.ts'
import { StorageError } from './driver.ts'

export interface BlockDevice {
  sizeBytes: number
  /** What the device holds, such as `a file system (ext4)`; undefined if nothing was recognized. */
  content: string | undefined
}

/** Throws if the path is not a block device, or if the kernel uses it. */
export async function inspectDevice(device: string): Promise<BlockDevice> {
  const found = statSync(device, { throwIfNoEntry: false })
  if (!found?.isBlockDevice()) throw new StorageError(`${device} is not a block device; to list them: lsblk`)
  // A process that is just starting may hold the mount in its own namespace for a moment after it was unmounted.
  const isFree = await waitUntil(() => !isUsed(device), releaseSeconds)
  if (!isFree) {
    throw new StorageError(`${device} is in use: it is mounted, has mounted partitions, or belongs to another device`)
  }
  const { stdout } = await run('blockdev', ['--getsize64', device])
  return { sizeBytes: Number(stdout.trim()), content: await findContent(device) }
}

const releaseSeconds = 1

/** The kernel refuses exclusive access to a device that is mounted, used for swap, or part of another device. */
function isUsed(device: string): boolean {
  try {
    closeSync(openSync(device, constants.O_RDWR | constants.O_EXCL))
    return false
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'EBUSY') return true
    throw new StorageError(`open ${device}`, { cause })
  }
}

async function findContent(device: string): Promise<string | undefined> {
  // blkid exits with 2 when it recognizes nothing, and with 8 when it recognizes several things.
  const { stdout, stderr } = await run('sh', ['-c', 'blkid -p -o export "$1" || echo "EXIT=$?"', 'blkid', device])
  const value = (name: string) => new RegExp(`^${name}=(.*)$`, 'm').exec(stdout)?.[1]
  const type = value('TYPE')
  if (type) return `a file system or the like (${type}${value('LABEL') ? `, ${value('LABEL')}` : ''})`
  if (value('PTTYPE')) return `a partition table (${value('PTTYPE')})`
  if (value('EXIT') === '2' && stderr === '') return hasPartitions(device) ? 'partitions' : undefined
  return 'data of an unknown kind'
}

function hasPartitions(device: string): boolean {
  const lines = readFileSync('/proc/partitions', 'utf8').split('\n')
  const name = basename(device)
  return lines.some((line) => new RegExp(`\\s${name}p?\\d+$`).test(line))
}
