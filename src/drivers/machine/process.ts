// What is known of the program of a machine: from the supervisor, from the kernel, and from the record of its ends.
import { existsSync, readFileSync } from 'node:fs'
import { findProgram } from '../box/process.ts'
import { isFrozen } from '../host/cgroup-freezer.ts'
import { readTextIfPresent } from '../host/file.ts'
import { isSupervised } from '../s6/control.ts'
import { type ProcessStatus, parseStatusFile } from '../s6/status.ts'
import { readFreezer, readVersion } from './disk.ts'
import type { MachineExit, MachineProcess } from './driver.ts'
import type { MachinePaths } from './paths.ts'

export function inspectProcess(paths: MachinePaths, instanceId: string): MachineProcess {
  const version = readVersion(paths)
  if (version === undefined) return { is: 'absent' }
  if (version !== instanceId) return { is: 'down', exits: [] }
  const found = findProgram(paths.service)
  // Its end is written down before the word that it stays down, so that whoever reads that word first knows the end too.
  const isDown = staysDown(paths)
  const exits = readExits(paths)
  if (found) {
    const since = Number((readServiceStatus(paths)?.since ?? 0n) / 1000n)
    const freezer = readFreezer(paths)
    const frozen = freezer !== undefined && isFrozen(freezer)
    return { is: 'up', pid: found.program, since, frozen, exits }
  }
  return { is: isDown ? 'down' : 'waiting', exits }
}

/** Nothing starts it but whoever asks for it. */
export function staysDown(paths: MachinePaths): boolean {
  return !existsSync(paths.service) || existsSync(`${paths.service}/down`)
}

/** Neither its program nor what runs after it. */
export function hasEnded(paths: MachinePaths): boolean {
  if (!isSupervised(paths.service)) return true
  const bytes = readStatusBytes(paths)
  const status = bytes && parseStatusFile(bytes)
  // Also while the script runs that follows the program, s6 knows the number of a process.
  return status !== undefined && status.is === 'down' && bytes!.readBigUInt64BE(24) === 0n
}

/** Something runs in its place, be it only what is about to start its program. */
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

/** A last line without an end is still being written. */
export function readExits(paths: MachinePaths): MachineExit[] {
  const lines = (readTextIfPresent(paths.exits) ?? '').split('\n').slice(0, -1)
  return lines.map(parseExit).filter((exit) => exit !== undefined)
}

function parseExit(line: string): MachineExit | undefined {
  const [number, at, exitCode, signal, oom, requested, restarting] = line.split(' ').map(Number)
  if (!number || !at || exitCode === undefined || signal === undefined) return undefined
  return {
    number,
    at,
    exitCode,
    signal,
    oomKilled: oom === 1,
    requested: requested === 1,
    restarting: restarting === 1,
  }
}
