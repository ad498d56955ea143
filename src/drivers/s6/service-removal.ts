import { existsSync, renameSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { waitUntil } from '../../model/poll.ts'
import { controlService, isSupervised, isTreeRunning, rescanTree } from './control.ts'
import {
  hiddenDirectory,
  listHiddenDirectories,
  markDown,
  type SupervisorPaths,
  serviceDirectory,
} from './service-directory.ts'
import { endMainProcess, killChildren } from './service-stop.ts'
import { resumeSupervision } from './tree-process.ts'

export async function removeService(paths: SupervisorPaths, name: string): Promise<void> {
  const directory = serviceDirectory(paths, name)
  const log = `${paths.logDirectory}/${name}`
  let session: number | undefined
  if (existsSync(directory)) {
    markDown(paths, name)
    session = await endMainProcess(paths, name)
    // A concurrent removal may have been faster.
    if (existsSync(directory)) renameSync(directory, hiddenDirectory(paths, 'removed', name))
  }
  const hidden = listHiddenDirectories(paths, name)
  // The log is created first and removed last, so without it nothing is left to do. Searching all processes is slow.
  if (hidden.length === 0 && !existsSync(log)) return
  for (const leftover of hidden) await unsupervise(paths, leftover)
  await killChildren(paths, name, session)
  // On a busy disk this takes long, so it must not block the event loop.
  for (const path of [...hidden, log]) await rm(path, { recursive: true, force: true })
}

async function unsupervise(paths: SupervisorPaths, directory: string): Promise<void> {
  const parts = [directory, `${directory}/log`]
  const isFree = () => !parts.some(isSupervised)
  if (isFree()) return
  if (isTreeRunning(paths)) rescanTree(paths, 'an')
  if (await waitUntil(isFree, 1)) return
  // Supervisors that a killed tree left behind are unknown to the new one, so they are commanded directly.
  resumeSupervision(paths)
  for (const part of parts.filter(isSupervised)) controlService(part, 'xd')
  if (!(await waitUntil(isFree, 10))) throw new Error(`end the supervision of ${directory}: s6-supervise keeps running`)
}
