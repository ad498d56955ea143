import { existsSync } from 'node:fs'
import { waitUntil } from '../../model/poll.ts'
import { readTextIfPresent } from '../host/file.ts'
import { controlService, isSupervised } from './control.ts'
import { markDown, type SupervisorPaths, serviceDirectory } from './service-directory.ts'
import { defaultStopTimeoutSeconds } from './service-script.ts'
import { inspectService } from './service-state.ts'
import { killUntilGone, processesOfService, resumeSupervision } from './tree-process.ts'

const killTimeoutSeconds = 10

export async function stopService(paths: SupervisorPaths, name: string, timeoutSeconds?: number): Promise<void> {
  if (!existsSync(serviceDirectory(paths, name))) return
  markDown(paths, name)
  await bringDown(paths, name, timeoutSeconds)
}

/** Ends every process of the service, without marking it as down. */
export async function bringDown(paths: SupervisorPaths, name: string, timeoutSeconds?: number): Promise<void> {
  await killChildren(paths, name, await endMainProcess(paths, name, timeoutSeconds))
}

/** Ends the main process and returns its session, which has the same number as the process. */
export async function endMainProcess(
  paths: SupervisorPaths,
  name: string,
  timeoutSeconds?: number,
): Promise<number | undefined> {
  const before = await inspectService(paths, name)
  if (isSupervised(serviceDirectory(paths, name))) {
    // One second more than s6 waits before SIGKILL, so that s6 sends it first unless the caller has a shorter timeout.
    await takeDown(paths, name, timeoutSeconds ?? readStopTimeoutSeconds(paths, name) + 1)
  }
  return before.is === 'up' ? before.pid : undefined
}

async function takeDown(paths: SupervisorPaths, name: string, timeoutSeconds: number): Promise<void> {
  const directory = serviceDirectory(paths, name)
  controlService(directory, 'd')
  const isDown = async () => {
    const state = await inspectService(paths, name)
    return state.is === 'absent' || (state.is === 'down' && !state.wanted && !state.finishing)
  }
  if (await waitUntil(isDown, timeoutSeconds)) return
  resumeSupervision(paths)
  controlService(directory, 'k')
  if (!(await waitUntil(isDown, killTimeoutSeconds))) throw new Error(`stop service ${name}: it survives SIGKILL`)
}

function readStopTimeoutSeconds(paths: SupervisorPaths, name: string): number {
  const milliseconds = readTextIfPresent(`${serviceDirectory(paths, name)}/timeout-kill`)
  return milliseconds === undefined ? defaultStopTimeoutSeconds : Number(milliseconds) / 1000
}

/** Kills the children that outlived the main process: they would hold files, ports and the log open. */
export async function killChildren(paths: SupervisorPaths, name: string, session: number | undefined): Promise<void> {
  const gone = await killUntilGone(() => processesOfService(paths, name, session))
  if (!gone) throw new Error(`stop service ${name}: its processes survive SIGKILL`)
}
