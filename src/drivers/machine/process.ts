// The state of a machine's program, read from the supervisor, the kernel and the record of its exits.
import { existsSync, readFileSync } from 'node:fs'
import { isFrozen } from '../host/cgroup-freezer.ts'
import { readTextIfPresent } from '../host/file.ts'
import { isSupervised } from '../s6/control.ts'
import type { ProcessStatus } from '../s6/driver.ts'
import { parseStatusFile } from '../s6/status.ts'
import { findRunning, readContainers } from './container.ts'
import { readFreezer } from './control-group.ts'
import type { MachineExit, MachineProcess } from './driver.ts'
import type { MachinePaths } from './paths.ts'

export function inspectProcess(paths: MachinePaths, instanceId: string): MachineProcess {
  const version = readVersion(paths)
  if (version === undefined) return { is: 'absent' }
  if (version !== instanceId) return { is: 'down', exits: [] }
  const found = findRunning(paths)
  const containers = found && readContainers(paths)
  // The finish script records an exit before it writes the `down` file. Reading in the opposite order never misses one.
  const isDown = isMarkedDown(paths)
  const exits = readExits(paths)
  if (found) {
    const since = Number((readServiceStatus(paths)?.since ?? 0n) / 1000n)
    const freezer = readFreezer(paths)
    const frozen = freezer !== undefined && isFrozen(freezer)
    return { is: 'up', pid: found.program, since, frozen, exits, ...(containers && { containers }) }
  }
  return { is: isDown ? 'down' : 'waiting', exits }
}

/** Returns the version that the machine was last prepared for. */
export function readVersion(paths: MachinePaths): string | undefined {
  return readTextIfPresent(paths.version)
}

function isMarkedDown(paths: MachinePaths): boolean {
  return !existsSync(paths.service) || existsSync(`${paths.service}/down`)
}

/** Whether neither the program nor its finish script is running. */
export function hasEnded(paths: MachinePaths): boolean {
  if (!isSupervised(paths.service)) return true
  const bytes = readStatusBytes(paths)
  const status = bytes && parseStatusFile(bytes)
  // The status is "down" while the finish script runs, but then s6 records the script's pid.
  return status !== undefined && status.is === 'down' && bytes!.readBigUInt64BE(24) === 0n
}

/** Whether the program or the scripts that start it are running. */
export function isBusy(paths: MachinePaths): boolean {
  return isSupervised(paths.service) && readServiceStatus(paths)?.is !== 'down'
}

function readServiceStatus(paths: MachinePaths): ProcessStatus | undefined {
  const bytes = readStatusBytes(paths)
  return bytes && parseStatusFile(bytes)
}

function readStatusBytes(paths: MachinePaths): Buffer | undefined {
  try {
    return readFileSync(`${paths.service}/supervise/status`)
  } catch {
    return undefined
  }
}

/** Skips a last line without a line break, which is still being written. */
function readExits(paths: MachinePaths): MachineExit[] {
  const lines = (readTextIfPresent(paths.exits) ?? '').split('\n').slice(0, -1)
  return lines.map(parseExit).filter((exit) => exit !== undefined)
}

export function lastExitNumber(paths: MachinePaths): number {
  return readExits(paths).at(-1)?.number ?? 0
}

function parseExit(line: string): MachineExit | undefined {
  const words = line.split(' ')
  const [number, at, exitCode, signal, oom, requested, restarting, restartSeconds] = words.map(Number)
  const container = words[8]
  if (!number || !at || exitCode === undefined || signal === undefined) return undefined
  return {
    number,
    at,
    exitCode,
    signal,
    oomKilled: oom === 1,
    requested: requested === 1,
    restarting: restarting === 1,
    restartSeconds: restartSeconds ?? 0,
    ...(container && { container }),
  }
}
