// Files with a block in the middle that the kernel refuses to read, as on a disk with a bad sector: a Btrfs whose copy of the
// block no longer has its checksum.
import { execFileSync, spawnSync } from 'node:child_process'
import { closeSync, fstatSync, openSync, readFileSync, readSync, rmSync, statSync, writeSync } from 'node:fs'
import { temporaryDirectory } from './temporary-home.ts'

const blockBytes = 4096

export interface BrokenFile {
  /** Where the block that cannot be read begins. */
  offset: number
  remove(): void
}

/** Mounts a copy of the file over it whose block in the middle cannot be read. Undefined if this host cannot mount Btrfs. */
export function breakBlock(path: string): BrokenFile | undefined {
  const outside = temporaryDirectory()
  const [image, mount, copy] = [`${outside}/image`, `${outside}/m`, `${outside}/m/file`]
  const remove = () => {
    for (const place of [path, mount]) spawnSync('umount', [place])
    rmSync(outside, { recursive: true, force: true })
  }
  execFileSync('mkdir', [mount])
  execFileSync('truncate', ['-s', '128M', image])
  const mountImage = ['-o', 'loop', image, mount]
  if (spawnSync('mkfs.btrfs', ['-q', image]).status !== 0 || spawnSync('mount', mountImage).status !== 0) {
    remove()
    return undefined
  }
  execFileSync('cp', ['-a', path, copy])
  execFileSync('umount', [mount])
  const offset = chooseOffset(path)
  const block = readFileSync(path).subarray(offset, offset + blockBytes)
  corrupt(image, block)
  execFileSync('mount', mountImage)
  execFileSync('mount', ['--bind', copy, path])
  return { offset, remove }
}

/** Of a block behind the first one that differs from the others. */
function chooseOffset(path: string): number {
  const bytes = readFileSync(path)
  for (let at = Math.floor(statSync(path).size / 2 / blockBytes) * blockBytes; at > 0; at -= blockBytes) {
    const block = bytes.subarray(at, at + blockBytes)
    if (block.some((byte) => byte !== 0) && bytes.indexOf(block) === at) return at
  }
  throw new Error(`${path} has no block that could be found in the image`)
}

/** Changes a byte of each copy of the block in the image. */
function corrupt(image: string, block: Buffer): void {
  const descriptor = openSync(image, 'r+')
  const found = Buffer.alloc(blockBytes)
  for (let at = 0; at < fstatSync(descriptor).size; at += blockBytes) {
    readSync(descriptor, found, 0, blockBytes, at)
    if (found.equals(block)) writeSync(descriptor, Buffer.from([found[100]! ^ 1]), 0, 1, at + 100)
  }
  closeSync(descriptor)
}
