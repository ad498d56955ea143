// The record of the storage pool. The pool is mounted over the home, so that a home has two directories: the one below
// the mount, which holds only `pool/` with the record and the image file, and the one in the pool, which holds everything
// else and a copy of the record. Both copies have the same path; the one in the pool is marked.
import { createHash } from 'node:crypto'
import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import type { PoolFileSystem } from './driver.ts'

/**
 * `creating`: the file system may be incomplete. `copying`: the home is being copied, and the original is in use.
 * `cleaning`: the copy is complete and in use, and the original is being deleted.
 */
export type PoolStep = 'creating' | 'copying' | 'cleaning' | 'ready'

export interface PoolRecord {
  /** The UUID of the file system. */
  id: string
  fileSystem: PoolFileSystem
  /** Null if the pool is the image file. */
  device: string | null
  /** An image file that takes space on the disk only when it is written. */
  sparse: boolean
  step: PoolStep
  /** True in the copy of the record that is in the pool. */
  isInside: boolean
}

export interface PoolPaths {
  directory: string
  record: string
  image: string
  /** Where the pool is mounted while the home is copied to it. */
  mount: string
  /** Outside of the home, because the path of a file in it depends on whether the pool is mounted. */
  lock: string
}

export function poolPaths(home: string): PoolPaths {
  const directory = `${home}/pool`
  return {
    directory,
    record: `${directory}/pool.json`,
    image: `${directory}/data.img`,
    mount: `${directory}/mount`,
    lock: `/run/berth-storage-${createHash('sha256').update(home).digest('hex').slice(0, 16)}.lock`,
  }
}

export function readRecord(home: string): PoolRecord | undefined {
  let text: string
  try {
    text = readFileSync(poolPaths(home).record, 'utf8')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // Ordinary users may not look into the directory; they use no pool.
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'EACCES') return undefined
    throw error
  }
  return JSON.parse(text)
}

/** Replaces the record durably. */
export function writeRecord(home: string, record: PoolRecord): void {
  const { directory, record: file } = poolPaths(home)
  mkdirSync(directory, { recursive: true, mode: 0o700 })
  const fresh = `${file}.new`
  writeFileSync(fresh, `${JSON.stringify(record)}\n`, { mode: 0o600, flush: true })
  renameSync(fresh, file)
  syncDirectory(directory)
  syncDirectory(home)
}

function syncDirectory(path: string): void {
  const descriptor = openSync(path, 'r')
  try {
    fsyncSync(descriptor)
  } finally {
    closeSync(descriptor)
  }
}
