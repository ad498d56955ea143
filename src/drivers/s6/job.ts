// Long work that must not depend on the life of the control plane: a backup, a copy. It runs under the supervisor with a
// fixed name, once. How it ended is kept until it is removed, also over a reboot. A job that a reboot interrupted starts
// over by itself, so what a job does must be harmless to repeat; one whose place is gone meanwhile must fail.
import { waitUntil } from '../../model/poll.ts'
import type { Micros } from '../../model/time.ts'
import type { Supervisor } from './supervisor.ts'

export interface JobSpec {
  command: string[]
  uid?: number | undefined
  env?: Record<string, string> | undefined
  niceness?: number | undefined
  /** Files of control groups that it joins. */
  cgroup?: string[] | undefined
}

export type JobState =
  | { is: 'absent' }
  /** Without a pid while it is about to start or to end. */
  | { is: 'running'; pid?: number; since: Micros }
  /** Neither code nor signal when a crash took the record of it. The log is the last lines, each with its time. */
  | { is: 'ended'; exitCode?: number; signal?: string; log: string[] }

export interface JobDriver {
  /** Starts it unless a job of this name runs or has ended; then nothing happens, whatever the spec. */
  ensureJob(name: string, spec: JobSpec): Promise<void>
  inspectJob(name: string): Promise<JobState>
  /** Nothing of it is left: no process, no record, no log. */
  removeJob(name: string): Promise<void>
  /** The last lines it has printed so far. */
  readJobLog(name: string, lines: number): string[]
}

const logLines = 50
const logSeconds = 5

export function jobDriver(supervisor: Supervisor): JobDriver {
  return {
    ensureJob: (name, spec) => ensureJob(supervisor, name, spec),
    inspectJob: (name) => inspectJob(supervisor, name),
    removeJob: (name) => supervisor.removeService(name),
    readJobLog: (name, lines) => supervisor.readLog(name, lines),
  }
}

async function ensureJob(supervisor: Supervisor, name: string, spec: JobSpec): Promise<void> {
  const { niceness, command, ...rest } = spec
  const nice = niceness === undefined ? [] : ['nice', '-n', String(niceness)]
  await supervisor.ensureService(name, {
    ...rest,
    command: [...nice, ...command],
    once: true,
    // There is nothing to tidy up in what can be repeated.
    stopSignal: 'SIGKILL',
  })
}

async function inspectJob(supervisor: Supervisor, name: string): Promise<JobState> {
  const state = await supervisor.inspectService(name)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'up') return { is: 'running', pid: state.pid, since: state.since }
  if (state.wanted) return { is: 'running', since: state.since }
  return {
    is: 'ended',
    ...(state.exitCode !== undefined && { exitCode: state.exitCode }),
    ...(state.signal !== undefined && { signal: state.signal }),
    log: await readWholeLog(supervisor, name),
  }
}

// The log is written by another process, which may be a moment behind. The last line is the one that tells the end.
async function readWholeLog(supervisor: Supervisor, name: string): Promise<string[]> {
  let log: string[] = []
  const isEnd = (line: string) => / {2}ended (with exit code|by signal) \d+$/.test(line)
  await waitUntil(() => {
    log = supervisor.readLog(name, logLines)
    return log.some(isEnd)
  }, logSeconds)
  return log.filter((line) => !isEnd(line))
}

/** A line of a log without the time in front. */
export function withoutTime(line: string): string {
  return line.replace(/^\S+ \S+ {2}/, '')
}
