// Jobs run under the supervisor, once and under a fixed name, because a backup or a copy must outlive the control
// plane. The exit status is kept until the job is removed, also over a reboot. A job that a reboot interrupted starts
// again, so jobs must be repeatable, and must fail if the directory they work in has been removed meanwhile.
import { waitUntil } from '../../model/poll.ts'
import type { JobDriver, JobSpec, JobState, Supervisor } from './driver.ts'

const maxLogLines = 50
const logTimeoutSeconds = 5

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
    // A job is repeatable, so it needs no time to clean up.
    stopSignal: 'SIGKILL',
  })
}

async function inspectJob(supervisor: Supervisor, name: string): Promise<JobState> {
  const state = await supervisor.inspectService(name)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'up') return { is: 'running', pid: state.pid, since: state.since }
  if (state.wanted) {
    // Nobody creates a job again that exists, so without this it would be about to start for ever.
    await supervisor.ensureSupervised(name)
    return { is: 'running', since: state.since }
  }
  return {
    is: 'ended',
    ...(state.exitCode !== undefined && { exitCode: state.exitCode }),
    ...(state.signal !== undefined && { signal: state.signal }),
    log: await readCompleteLog(supervisor, name),
  }
}

// s6-log may be a moment behind. The line that the finish script prints is the last one.
async function readCompleteLog(supervisor: Supervisor, name: string): Promise<string[]> {
  let log: string[] = []
  const isEndLine = (line: string) => / {2}ended (with exit code|by signal) \d+$/.test(line)
  await waitUntil(() => {
    log = supervisor.readLog(name, maxLogLines)
    return log.some(isEndLine)
  }, logTimeoutSeconds)
  return log.filter((line) => !isEndLine(line))
}

/** Removes the time in front of a log line. */
export function stripLogTime(line: string): string {
  return line.replace(/^\S+ \S+ {2}/, '')
}
