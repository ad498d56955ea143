// Finds the first process of a box from the state of s6 and the kernel. No pid file is involved, so nothing can be stale.
import { closeSync, openSync, readSync, statSync } from 'node:fs'
import { readTextIfPresent } from '../host/file.ts'
import { readEnvironment } from '../host/process-list.ts'

/** The process that s6 supervises. Its environment is checked, because pids are reused. */
export function findSupervised(service: string): number | undefined {
  const pid = readSupervisedPid(service)
  if (pid === undefined) return undefined
  return readEnvironment(pid).includes(`BERTH_SERVICE=${service}`) ? pid : undefined
}

const statusBytes = 35
const pidOffset = 28

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
  return status.readUInt32BE(pidOffset) || undefined
}

/**
 * The first process of a sandbox: the child of bwrap, which is the child of the supervised process. Before it has
 * executed s6-svscan, its filesystem is not mounted yet and it does not count.
 */
export function findFirstProcess(service: string): number | undefined {
  return findInit(service, 's6-svscan')
}

/**
 * The first process of a machine or of one of its containers, a reaper, whether or not its program runs yet. All others
 * end when it does.
 */
export function findReaper(service: string, container?: string): number | undefined {
  return findInit(service, 'bwrap', container)
}

/** The child of the supervised process that runs this container. */
function findContainer(service: string, container: string): number | undefined {
  const supervised = findSupervised(service)
  if (supervised === undefined) return undefined
  const children = readProcFile(`/proc/${supervised}/task/${supervised}/children`)?.trim().split(' ') ?? []
  return children.map(Number).find((pid) => pid > 0 && readEnvironment(pid).includes(`BERTH_CONTAINER=${container}`))
}

function findInit(service: string, name: string, container?: string): number | undefined {
  const supervised = container === undefined ? findSupervised(service) : findContainer(service, container)
  const bwrap = supervised && findChild(supervised)
  const first = bwrap && findChild(bwrap)
  if (!first) return undefined
  const status = readStatus(first)
  return innerPid(status) === 1 && /^Name:\t(.*)$/m.exec(status)?.[1] === name ? first : undefined
}

/**
 * The program of a machine, which has pid 2 in its box. Orphans are children of the reaper too and may outlive the
 * program for a moment. Until it executes, the program is still bwrap, so the executables are compared.
 */
export function findProgram(service: string, container?: string): { first: number; program: number } | undefined {
  const first = findReaper(service, container)
  const program = first && findChild(first)
  if (!program || readInnerPid(program) !== 2) return undefined
  const [reaperFile, programFile] = [first, program].map(identifyExecutable)
  return reaperFile !== undefined && programFile !== undefined && reaperFile !== programFile
    ? { first, program }
    : undefined
}

function identifyExecutable(pid: number): string | undefined {
  try {
    const { dev, ino } = statSync(`/proc/${pid}/exe`)
    return `${dev}:${ino}`
  } catch {
    return undefined
  }
}

/** The pid in the innermost pid namespace of the process. */
export function readInnerPid(pid: number): number | undefined {
  return innerPid(readStatus(pid))
}

function readStatus(pid: number): string {
  return readProcFile(`/proc/${pid}/status`) ?? ''
}

function innerPid(status: string): number | undefined {
  return Number(/^NSpid:.*\t(\d+)$/m.exec(status)?.[1]) || undefined
}

function findChild(pid: number): number | undefined {
  return Number(readProcFile(`/proc/${pid}/task/${pid}/children`)?.split(' ')[0]) || undefined
}

/** Undefined when the process has exited. */
export function readProcFile(file: string): string | undefined {
  try {
    return readTextIfPresent(file)
  } catch {
    return undefined
  }
}
