// Commands to s6 through its control FIFOs. s6-svc and s6-svscanctl do the same, but would be a process for each
// command.
import { closeSync, constants, openSync, writeSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import type { SupervisorPaths } from './service-directory.ts'

/**
 * Writes a command to a FIFO; an empty one only checks for a reader. Returns false if there is none: s6 programs hold
 * their FIFO open while they run, and opening a FIFO without a reader fails.
 */
export function writeControl(fifo: string, command: string): boolean {
  try {
    const descriptor = openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK)
    try {
      if (command !== '') writeSync(descriptor, command)
    } finally {
      closeSync(descriptor)
    }
    return true
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? ''
    if (['ENXIO', 'ENOENT', 'ENOTDIR', 'EPIPE'].includes(code)) return false
    throw error
  }
}

function treeControl(paths: SupervisorPaths): string {
  return `${paths.treeDirectory}/.s6-svscan/control`
}

function serviceControl(directory: string): string {
  return `${directory}/supervise/control`
}

/** Whether s6-svscan runs. */
export function isTreeRunning(paths: SupervisorPaths): boolean {
  return writeControl(treeControl(paths), '')
}

/** What s6-svscan prints, and how it ended if this process started it and was there. */
export function treeLog(paths: SupervisorPaths): string {
  return `${paths.logDirectory}/.tree.log`
}

/** The end of the log, with a separator in front unless it is empty. */
export function readTreeLog(paths: SupervisorPaths): string {
  const text = (readTextIfPresent(treeLog(paths)) ?? '').trimEnd().split('\n').slice(-5).join('\n').slice(-1000)
  return text === '' ? '' : `; the end of its log: ${text}`
}

/** The log is the cause and no part of the message, which owners of clusters may read. */
export function treeNotRunning(paths: SupervisorPaths, operation = ''): Error {
  const cause = new Error(`s6-svscan is not running${readTreeLog(paths)}`)
  return new Error(`${operation}the supervision tree is not running`, { cause })
}

/** Makes s6-svscan supervise new services; with `an` it also stops supervising those whose directory is gone. */
export function rescanTree(paths: SupervisorPaths, command: 'a' | 'an'): void {
  if (!writeControl(treeControl(paths), command)) throw treeNotRunning(paths)
}

/** Whether s6-supervise runs for this directory. */
export function isSupervised(directory: string): boolean {
  return writeControl(serviceControl(directory), '')
}

/** Sends a command to s6-supervise, in the letters of s6-svc's options. */
export function controlService(directory: string, command: string): void {
  if (!writeControl(serviceControl(directory), command)) throw new Error(`${directory} is not supervised`)
}
