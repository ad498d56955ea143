// The interfaces through which the rest of the platform uses the process supervisor.
import type { Micros } from '../../model/time.ts'

export interface ServiceSpec {
  command: string[]
  env?: Record<string, string> | undefined
  uid?: number | undefined
  gid?: number | undefined
  cwd?: string | undefined
  stopSignal?: NodeJS.Signals | undefined
  /** The time between the stop signal and SIGKILL. */
  stopTimeoutSeconds?: number | undefined
  /** Commands to run before each start, in this order and as the same user. If one fails, s6 retries after a second. */
  beforeStart?: string[][] | undefined
  /** The `cgroup.procs` files of the control groups to join. Groups that a reboot has removed are created again. */
  cgroup?: string[] | undefined
  /** The command is not restarted when it ends, its exit status is kept, and `ensureService` no longer changes it. */
  once?: boolean | undefined
  /** The text of the finish script, which runs after each end. If it exits with 125, the command is not restarted. */
  finish?: string | undefined
  /** The text of the script that reads the output; the default writes a rotated log. */
  logger?: string | undefined
}

export type ProcessStatus =
  /** `finishing` is set while the finish script runs. */
  | { is: 'down'; wanted: boolean; finishing?: boolean; exitCode?: number; signal?: string; since: Micros }
  | { is: 'up'; pid: number; wanted: boolean; since: Micros; ready: boolean }

/** `ended` is set for a service with `once` whose command has ended. */
export type ServiceState = { is: 'absent' } | (ProcessStatus & { ended?: boolean })

export type TreeState = { is: 'up'; pid: number } | { is: 'down' }

/** The signals that s6 can send to a service. */
export type ServiceSignal =
  | 'SIGALRM'
  | 'SIGABRT'
  | 'SIGQUIT'
  | 'SIGHUP'
  | 'SIGKILL'
  | 'SIGTERM'
  | 'SIGINT'
  | 'SIGUSR1'
  | 'SIGUSR2'
  | 'SIGSTOP'
  | 'SIGCONT'
  | 'SIGWINCH'

/** Keeps services running, independently of the process that asked for them. */
export interface Supervisor {
  /** Starts the supervision tree unless it runs. */
  ensureTree(): Promise<void>
  inspectTree(): TreeState
  /** Ends every service and the tree. The next `ensureTree` starts the services that were not stopped before. */
  stopTree(options?: { timeoutSeconds?: number }): Promise<void>
  /** Afterwards the service is supervised and wanted up with this spec; a changed spec causes a restart. */
  ensureService(name: string, spec: ServiceSpec): Promise<void>
  startService(name: string): Promise<void>
  /** Makes s6 notice a service whose definition a killed process had just made. A tree that starts does that itself. */
  ensureSupervised(name: string): Promise<void>
  /** The service stays stopped, also after a reboot, until it is started or ensured again. */
  stopService(name: string, options?: { timeoutSeconds?: number }): Promise<void>
  restartService(name: string): Promise<void>
  signalService(name: string, signal: ServiceSignal): Promise<void>
  inspectService(name: string): Promise<ServiceState>
  listServices(): string[]
  /** Removes the service with its processes, definition and log. */
  removeService(name: string): Promise<void>
  /** Returns the last lines, oldest first, each with its time in front. */
  readLog(name: string, lines: number): string[]
}

export interface JobSpec {
  command: string[]
  uid?: number | undefined
  env?: Record<string, string> | undefined
  niceness?: number | undefined
  /** The `cgroup.procs` files of the control groups to join. */
  cgroup?: string[] | undefined
}

export type JobState =
  | { is: 'absent' }
  /** There is no pid while the job is about to start or to end. */
  | { is: 'running'; pid?: number; since: Micros }
  /**
   * Exit code and signal are both missing if a crash destroyed the record. The log holds the last lines with their
   * times.
   */
  | { is: 'ended'; exitCode?: number; signal?: string; log: string[] }

/** Runs commands that must outlive the control plane, such as backups, once and under a fixed name. */
export interface JobDriver {
  /** Starts the job. If a job of this name runs or has ended, nothing happens, even if the spec differs. */
  ensureJob(name: string, spec: JobSpec): Promise<void>
  inspectJob(name: string): Promise<JobState>
  /** Removes the job with its processes, exit status and log. */
  removeJob(name: string): Promise<void>
  /** Returns the last lines that the job has printed so far. */
  readJobLog(name: string, lines: number): string[]
}
