// Files with a block in the middle that the kernel refuses to read, as on a disk with a bad sector: a Btrfs whose copy of the
// block no longer has its checksum.
import { execFileSync, spawnSync } from 'node:child_process'
import { closeSync, fstatSync, mkdirSync, openSync, readFileSync, readSync, rmSync, statSync, writeSync } from 'node:fs'
import { temporaryDirectory } from '../temporary-home.ts'

const blockBytes = 4096

export interface BrokenFile {
  /** Where the block that cannot be read begins. */
  offset: number
  remove(): void
}

/** Mounts a copy of the file over it of which one block cannot be read: not the first one, and one that begins below the limit. */
export function breakBlock(path: string, limit = statSync(path).size / 2): BrokenFile {
  const outside = temporaryDirectory()
  const [image, mount, copy] = [`${outside}/image`, `${outside}/m`, `${outside}/m/file`]
  const remove = () => {
    for (const place of [path, mount]) spawnSync('umount', [place])
    rmSync(outside, { recursive: true, force: true })
  }
  try {
    mkdirSync(mount)
    execFileSync('truncate', ['-s', '128M', image])
    execFileSync('mkfs.btrfs', ['-q', image])
    execFileSync('mount', ['-o', 'loop', image, mount])
    execFileSync('cp', ['-a', path, copy])
    execFileSync('sync', ['-f', mount])
    const offset = chooseOffset(path, limit)
    corrupt(image, readFileSync(path).subarray(offset, offset + blockBytes))
    // Forgets what was cached of it.
    execFileSync('dd', [`if=${copy}`, 'iflag=nocache', 'count=0', 'status=none'])
    execFileSync('mount', ['--bind', copy, path])
    return { offset, remove }
  } catch (error) {
    remove()
    throw error
  }
}

/** Of a block that differs from the others. */
function chooseOffset(path: string, limit: number): number {
  const bytes = readFileSync(path)
  for (let at = (Math.ceil(limit / blockBytes) - 1) * blockBytes; at > 0; at -= blockBytes) {
    const block = bytes.subarray(at, at + blockBytes)
    if (block.some((byte) => byte !== 0) && bytes.indexOf(block) === at) return at
  }
  throw new Error(`${path} has no block that could be found in the image`)
}

/** Changes a byte of each copy of the block in the image. */
function corrupt(image: string, block: Buffer): void {
  const descriptor = openSync(image, 'r+')
  const found = Buffer.alloc(blockBytes)
  let count = 0
  for (let at = 0; at < fstatSync(descriptor).size; at += blockBytes) {
    readSync(descriptor, found, 0, blockBytes, at)
    if (found.equals(block)) count += writeSync(descriptor, Buffer.from([found[100]! ^ 1]), 0, 1, at + 100)
  }
  closeSync(descriptor)
  if (count === 0) throw new Error(`the block was not found in ${image}`)
}
