// Finds and signals commands in boxes by the process of `enter.pl` on the host that stands for each.
import { constants } from 'node:os'
import { killProcess } from '../../host/process-list.ts'
import { readInnerPid, readProcFile } from '../process.ts'

/** The command is the last child of `enter.pl`; the child before it is its watchdog. */
export function findCommandPid(pid: number): number | undefined {
  const children = readProcFile(`/proc/${pid}/task/${pid}/children`)?.trim().split(' ') ?? []
  if (children.length < 2) return undefined
  return readInnerPid(Number(children.at(-1)))
}

/** `enter.pl` shows the path of the program as its own command line once it has found it. */
export function findCommandPath(pid: number): string | undefined {
  return /^box-enter: ([^\0]+)/.exec(readProcFile(`/proc/${pid}/cmdline`) ?? '')?.[1]
}

/** `enter.pl` passes every signal on. SIGSTOP cannot be caught, so SIGSTKFLT, which nothing else uses, stands for it. */
export function signalCommand(pid: number, signal: number): void {
  const { SIGSTOP, SIGSTKFLT } = constants.signals
  killProcess(pid, signal === SIGSTOP ? SIGSTKFLT : signal)
}
