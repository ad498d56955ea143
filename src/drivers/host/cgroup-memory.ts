// The memory of a control group that has processes: how much it has, another limit, and taking back what it can do without.
import { existsSync, writeFileSync } from 'node:fs'
import { memoryFile, readSwapLimit, swapFile } from './cgroup.ts'
import { readTextIfPresent } from './file.ts'
import { run } from './process.ts'

export interface GroupMemory {
  limitBytes: number
  /** What is read from files again when it is needed does not count. */
  usedBytes: number
}

interface Counted {
  limitBytes: number
  bytes: number
  /** Contents of files, which the kernel gives up first. */
  fileBytes: number
}

const isFirst = (group: string) => existsSync(`${group}/${memoryFile}`)
/** The kernel may look for a long time for something that it can do without. */
const writeSeconds = 8
const spareBytes = 4 * 1024 * 1024

/** Undefined where nothing is counted. */
export function readGroupMemory(group: string): GroupMemory | undefined {
  const counted = count(group)
  if (!counted) return undefined
  return { limitBytes: counted.limitBytes, usedBytes: Math.max(0, counted.bytes - counted.fileBytes) }
}

function count(group: string): Counted | undefined {
  const [limit, usage] = isFirst(group) ? [memoryFile, 'memory.usage_in_bytes'] : ['memory.max', 'memory.current']
  const [limitBytes, bytes] = [limit, usage].map((file) => Number(readTextIfPresent(`${group}/${file}`)))
  if (!Number.isFinite(limitBytes) || !Number.isFinite(bytes)) return undefined
  const stat = readTextIfPresent(`${group}/memory.stat`) ?? ''
  const prefix = isFirst(group) ? 'total_' : ''
  const fileBytes = ['active_file', 'inactive_file'].reduce((sum, name) => {
    return sum + Number(new RegExp(`^${prefix}${name} (\\d+)$`, 'm').exec(stat)?.[1] ?? 0)
  }, 0)
  return { limitBytes: limitBytes!, bytes: bytes!, fileBytes }
}

/** False when it needs more than that, so that programs in it would be killed. */
export async function setMemoryLimit(group: string, limitBytes: number): Promise<boolean> {
  const before = count(group)
  if (!before) return false
  if (isFirst(group)) {
    raiseSwapLimit(group, limitBytes - before.limitBytes)
    // Refused by the kernel when it cannot take back as much as that takes.
    await write(`${group}/${memoryFile}`, [limitBytes])
    return count(group)?.limitBytes === limitBytes
  }
  await reclaimMemory(group, before.bytes - limitBytes)
  if (count(group)!.bytes > limitBytes) return false
  await write(`${group}/memory.max`, [limitBytes])
  return true
}

/** It may have as much swap as before, beside more memory. A lower limit leaves it: memory may then go there. */
function raiseSwapLimit(group: string, moreBytes: number): void {
  const before = readSwapLimit(group)
  if (before !== undefined && moreBytes > 0) writeFileSync(`${group}/${swapFile.first}`, String(before + moreBytes))
}

/** How much was given back, which may be less than what was asked for. */
export async function reclaimMemory(group: string, bytes: number): Promise<number> {
  const before = count(group)
  if (!before || bytes <= 0) return 0
  if (isFirst(group)) await squeeze(group, before, bytes)
  else await write(`${group}/memory.reclaim`, [bytes])
  return Math.max(0, before.bytes - (count(group)?.bytes ?? 0))
}

/**
 * Version 1 takes back what it has to for a lower limit, which then stands for a moment. Something is left that could be
 * taken back still: a program that asks for more in that moment would be killed otherwise.
 */
async function squeeze(group: string, { bytes, fileBytes, limitBytes }: Counted, wantedBytes: number): Promise<void> {
  const lower = bytes - Math.min(wantedBytes, fileBytes - spareBytes)
  if (lower < bytes) await write(`${group}/${memoryFile}`, [lower, limitBytes])
}

/**
 * One after the other, by a process of its own: the kernel holds whoever writes until it is done. What it could not do,
 * or not in time, is seen afterwards.
 */
async function write(file: string, values: number[]): Promise<void> {
  const script = 'file=$1; shift; for value; do printf %s "$value" > "$file" || true; done'
  const words = values.map((value) => String(Math.round(value)))
  await run('sh', ['-c', script, 'sh', file, ...words], { timeoutSeconds: writeSeconds }).catch(() => undefined)
}
