// Measures, limits and reclaims the memory of a control group while its processes run.
import { existsSync, writeFileSync } from 'node:fs'
import { memoryLimitFile, readSwapLimit, swapLimitFile } from './cgroup.ts'
import type { GroupMemory } from './driver.ts'
import { readTextIfPresent } from './file.ts'
import { run } from './process.ts'
import { driverProgram } from './program.ts'

interface MemoryUsage {
  limitBytes: number
  bytes: number
  /** The page cache, which the kernel reclaims first. */
  fileBytes: number
}

const isV1 = (group: string) => existsSync(`${group}/${memoryLimitFile}`)
/** The kernel may search for a long time for memory that it can reclaim. */
const writeTimeoutSeconds = 8
const reservedBytes = 4 * 1024 * 1024

/** Returns undefined if the kernel does not account for the memory of this group. */
export function readGroupMemory(group: string): GroupMemory | undefined {
  const usage = readUsage(group)
  if (!usage) return undefined
  return { limitBytes: usage.limitBytes, usedBytes: Math.max(0, usage.bytes - usage.fileBytes) }
}

function readUsage(group: string): MemoryUsage | undefined {
  const files = isV1(group) ? [memoryLimitFile, 'memory.usage_in_bytes'] : ['memory.max', 'memory.current']
  const [limitBytes, bytes] = files.map((file) => Number(readTextIfPresent(`${group}/${file}`)))
  if (!Number.isFinite(limitBytes) || !Number.isFinite(bytes)) return undefined
  const stat = readTextIfPresent(`${group}/memory.stat`) ?? ''
  const prefix = isV1(group) ? 'total_' : ''
  const fileBytes = ['active_file', 'inactive_file'].reduce((sum, name) => {
    return sum + Number(new RegExp(`^${prefix}${name} (\\d+)$`, 'm').exec(stat)?.[1] ?? 0)
  }, 0)
  return { limitBytes: limitBytes!, bytes: bytes!, fileBytes }
}

/** Returns false and keeps the old limit if the processes need more than the new one and would be killed. */
export async function setMemoryLimit(group: string, limitBytes: number): Promise<boolean> {
  const before = readUsage(group)
  if (!before) return false
  if (isV1(group)) {
    raiseSwapLimit(group, limitBytes - before.limitBytes)
    // The kernel refuses the limit if it cannot reclaim enough memory for it.
    await writeValues(`${group}/${memoryLimitFile}`, [limitBytes])
    return readUsage(group)?.limitBytes === limitBytes
  }
  await reclaimMemory(group, before.bytes - limitBytes)
  if (readUsage(group)!.bytes > limitBytes) return false
  await writeValues(`${group}/memory.max`, [limitBytes])
  return true
}

/** Keeps the amount of swap when memory grows. When it shrinks, the limit stays, so memory can move to swap. */
function raiseSwapLimit(group: string, moreBytes: number): void {
  const before = readSwapLimit(group)
  if (before !== undefined && moreBytes > 0) writeFileSync(`${group}/${swapLimitFile.v1}`, String(before + moreBytes))
}

/** Returns how much was reclaimed, which may be less than requested. */
export async function reclaimMemory(group: string, bytes: number): Promise<number> {
  const before = readUsage(group)
  if (!before || bytes <= 0) return 0
  if (isV1(group)) await lowerLimitBriefly(group, before, bytes)
  else await writeValues(`${group}/memory.reclaim`, [bytes])
  return Math.max(0, before.bytes - (readUsage(group)?.bytes ?? 0))
}

/**
 * Reclaims memory in version 1, which does so only for a lower limit. Some page cache is left, because a process that
 * allocates memory while the lower limit is set would be killed otherwise.
 */
async function lowerLimitBriefly(group: string, usage: MemoryUsage, wantedBytes: number): Promise<void> {
  const { bytes, fileBytes, limitBytes } = usage
  const lower = bytes - Math.min(wantedBytes, fileBytes - reservedBytes)
  if (lower < bytes) await writeValues(`${group}/${memoryLimitFile}`, [lower, limitBytes])
}

/**
 * Writes the values one after another in a child process, because the kernel blocks the writer while it reclaims
 * memory. Errors and timeouts are ignored: callers read the usage afterwards.
 */
async function writeValues(file: string, values: number[]): Promise<void> {
  const words = values.map((value) => String(Math.round(value)))
  const args = [driverProgram('host/write-values.sh'), file, ...words]
  await run('sh', args, { timeoutSeconds: writeTimeoutSeconds }).catch(() => undefined)
}
