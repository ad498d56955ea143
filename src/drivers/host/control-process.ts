// The processes of the control plane that use a home. They are not supervised by it, so they note themselves down.
import { mkdirSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { readTextIfPresent } from './file.ts'
import type { Home } from './home.ts'
import { findProcess, killProcess } from './process-list.ts'

const stopSeconds = 15

export function noteControlProcess(home: Home): void {
  mkdirSync(directory(home), { recursive: true })
  writeFileSync(`${directory(home)}/${process.pid}`, findProcess(process.pid)?.startTime ?? '')
}

export function forgetControlProcess(home: Home): void {
  rmSync(`${directory(home)}/${process.pid}`, { force: true })
}

/** The notes of processes that were killed are recognised by the start time and cleared away. */
export function listControlProcesses(home: Home): number[] {
  mkdirSync(directory(home), { recursive: true })
  const pids = readdirSync(directory(home)).map(Number)
  for (const pid of pids.filter((noted) => !isRunning(home, noted)))
    rmSync(`${directory(home)}/${pid}`, { force: true })
  return pids.filter((pid) => isRunning(home, pid))
}

export async function stopControlProcesses(home: Home): Promise<void> {
  const pids = listControlProcesses(home)
  for (const pid of pids) killProcess(pid, 'SIGTERM')
  if (await waitUntil(() => listControlProcesses(home).length === 0, stopSeconds)) return
  for (const pid of listControlProcesses(home)) killProcess(pid, 'SIGKILL')
}

function directory(home: Home): string {
  return `${home.run}/control`
}

function isRunning(home: Home, pid: number): boolean {
  const noted = readTextIfPresent(`${directory(home)}/${pid}`)
  return noted !== undefined && findProcess(pid)?.startTime === noted
}
