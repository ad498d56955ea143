// The control plane processes that use a home. s6 does not supervise them, so each registers itself in a file.
import { readdirSync, rmSync, writeFileSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { ensureDirectory } from './atomic-file.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { findProcess, killProcess } from './process-list.ts'

const stopTimeoutSeconds = 15

export function registerControlProcess(home: Home): void {
  ensureDirectory(directory(home), { mode: 0o700 })
  writeFileSync(`${directory(home)}/${process.pid}`, findProcess(process.pid)?.startTime ?? '')
}

export function unregisterControlProcess(home: Home): void {
  rmSync(`${directory(home)}/${process.pid}`, { force: true })
}

/**
 * Lists the processes that run. Files that killed processes left behind are recognized by the start time and removed.
 */
export function listControlProcesses(home: Home): number[] {
  ensureDirectory(directory(home), { mode: 0o700 })
  const pids = readdirSync(directory(home)).map(Number)
  for (const pid of pids.filter((registered) => !isRunning(home, registered)))
    rmSync(`${directory(home)}/${pid}`, { force: true })
  return pids.filter((pid) => isRunning(home, pid))
}

export async function stopControlProcesses(home: Home): Promise<void> {
  const pids = listControlProcesses(home)
  for (const pid of pids) killProcess(pid, 'SIGTERM')
  if (await waitUntil(() => listControlProcesses(home).length === 0, stopTimeoutSeconds)) return
  for (const pid of listControlProcesses(home)) killProcess(pid, 'SIGKILL')
}

function directory(home: Home): string {
  return `${home.run}/control`
}

function isRunning(home: Home, pid: number): boolean {
  const startTime = readTextIfPresent(`${directory(home)}/${pid}`)
  return startTime !== undefined && findProcess(pid)?.startTime === startTime
}
