// Which process is the first of a box, by what s6 and the kernel say now and not by what somebody wrote down once.
import { closeSync, openSync, readSync, statSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import { readEnvironment } from '../host/process-list.ts'

/** The process that s6 watches, if it belongs to this service: numbers are used again by other processes. */
export function findSupervised(service: string): number | undefined {
  const pid = readSupervisedPid(service)
  if (pid === undefined) return undefined
  return readEnvironment(pid).includes(`BERTH_SERVICE=${service}`) ? pid : undefined
}

const statusBytes = 35
const pidAt = 28

function readSupervisedPid(service: string): number | undefined {
  const status = Buffer.alloc(statusBytes)
  try {
    const descriptor = openSync(`${service}/supervise/status`, 'r')
    try {
      if (readSync(descriptor, status) < statusBytes) return undefined
    } finally {
      closeSync(descriptor)
    }
  } catch {
    return undefined
  }
  return status.readUInt32BE(pidAt) || undefined
}

/**
 * The child of bwrap, which is the child of what s6 watches. It counts as soon as bwrap has become what it was to run:
 * before that its file system is not in place.
 */
export function findFirstProcess(service: string): number | undefined {
  const watched = findSupervised(service)
  const bwrap = watched && findChild(watched)
  const first = bwrap && findChild(bwrap)
  return first && isFirst(first, 's6-svscan') ? first : undefined
}

function isFirst(pid: number, name: string): boolean {
  const { command, inside } = readNames(pid)
  return inside === 1 && command === name
}

/** What a process is called, and its number in the box that it is in, or on the host when it is in none. */
function readNames(pid: number): { command: string | undefined; inside: number | undefined } {
  const status = readOf(`/proc/${pid}/status`) ?? ''
  const inside = Number(/^NSpid:.*\t(\d+)$/m.exec(status)?.[1]) || undefined
  return { command: /^Name:\t(.*)$/m.exec(status)?.[1], inside }
}

/**
 * The program of a machine: the second process of the box, under what buries its orphans. Those are children of the
 * first as well, and outlive the program by a moment. It counts as soon as it is no longer bwrap, which it was before it
 * became what it was to run.
 */
export function findProgram(service: string): { first: number; program: number } | undefined {
  const first = findReaper(service)
  const program = first && findChild(first)
  if (!program || readNames(program).inside !== 2) return undefined
  const [ours, its] = [first, program].map(identifyExecutable)
  return ours !== undefined && its !== undefined && ours !== its ? { first, program } : undefined
}

/** The first process of a machine, also while its program is not in place. Everything in it ends when this does. */
export function findReaper(service: string): number | undefined {
  const watched = findSupervised(service)
  const bwrap = watched && findChild(watched)
  const first = bwrap && findChild(bwrap)
  return first && isFirst(first, 'bwrap') ? first : undefined
}

function identifyExecutable(pid: number): string | undefined {
  try {
    const { dev, ino } = statSync(`/proc/${pid}/exe`)
    return `${dev}:${ino}`
  } catch {
    return undefined
  }
}

/**
 * The number that a command has inside, by the program that entered the box for it: of its children the command is the
 * last, after the one that guards it.
 */
export function findCommandPid(entered: number): number | undefined {
  const children = readOf(`/proc/${entered}/task/${entered}/children`)?.trim().split(' ') ?? []
  if (children.length < 2) return undefined
  return readNames(Number(children.at(-1))).inside
}

/** The path inside of what a command runs, once the program that entered the box for it has found it. */
export function findCommandPath(entered: number): string | undefined {
  return /^box-enter: ([^\0]+)/.exec(readOf(`/proc/${entered}/cmdline`) ?? '')?.[1]
}

function findChild(pid: number): number | undefined {
  return Number(readOf(`/proc/${pid}/task/${pid}/children`)?.split(' ')[0]) || undefined
}

// A process may end while it is looked at.
function readOf(file: string): string | undefined {
  try {
    return readTextIfPresent(file)
  } catch {
    return undefined
  }
}
