// Files of the platform in the repository that survive a power failure.
import { createHash } from 'node:crypto'
import { renameSync } from 'node:fs'
import { open, rm } from 'node:fs/promises'
import { temporaryPath } from '../host/atomic-file.ts'

/** Replaces a file atomically. It is durable when this returns. */
export async function replaceDurably(directory: string, name: string, text: string): Promise<void> {
  await replaceFile(directory, name, text)
  await syncDirectory(directory)
}

/** Replaces a file atomically. After a power failure it has the new or the old content. */
export async function replaceFile(directory: string, name: string, text: string): Promise<void> {
  const fresh = temporaryPath(directory)
  try {
    await writeDurably(fresh, text)
    renameSync(fresh, `${directory}/${name}`)
  } catch (cause) {
    await rm(fresh, { force: true })
    throw new Error(`write ${name} in ${directory}`, { cause })
  }
}

export async function writeDurably(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'w', 0o600)
  await handle.writeFile(text)
  await handle.sync()
}

export async function appendDurably(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'a', 0o600)
  await handle.writeFile(text)
  await handle.sync()
}

export async function syncDirectory(path: string): Promise<void> {
  await using handle = await open(path, 'r')
  await handle.sync()
}

export function sha256(content: string | Buffer): string {
  return createHash('sha256').update(content).digest('hex')
}
