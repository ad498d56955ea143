import type { ChildProcess } from 'node:child_process'
import type { ContainerPhase } from '../../model/app/container/config.ts'
import type { ExecTarget, MachineSpec, MachineTraffic, StopOptions } from '../../model/app/machine-spec.ts'
import type { BoxCommand, BoxSession, Isolation, SessionEvents, SessionStart } from '../box/driver.ts'

/** One exit of a machine's program. */
export interface MachineExit {
  /** Counts the exits of one version. Only the last ones are kept. */
  number: number
  /** Milliseconds since 1970. */
  at: number
  /** 128 plus the signal number after a signal, as in a shell. A program that exits with such a code looks the same. */
  exitCode: number
  /** 0 when the program exited by itself. */
  signal: number
  oomKilled: boolean
  /** Whether the machine was told to stop. */
  requested: boolean
  /** Whether the supervisor starts the program again. */
  restarting: boolean
  /** The pause before that. */
  restartSeconds: number
  /** The container that exited; undefined when the machine did. */
  container?: string
}

export type MachineProcess =
  | { is: 'absent' }
  /** The program is not running and will not be restarted. */
  | { is: 'down'; exits: MachineExit[] }
  /** The supervisor will restart the program shortly. */
  | { is: 'waiting'; exits: MachineExit[] }
  | { is: 'up'; pid: number; since: number; frozen: boolean; exits: MachineExit[]; containers?: ContainerStatus[] }

export interface ContainerStatus {
  name: string
  state: ContainerPhase
  /** Counts its starts since the machine was started. */
  run: number
  /** When it was last started, in milliseconds since 1970. */
  since: number
  /** Of this run. */
  health?: 'healthy' | 'unhealthy'
  /** Of its last exit. */
  exitCode?: number
  restarts: number
}

export interface MachineProcessEntry {
  pid: number
  stime: number
  rtime: number
  command: string
  directory: string
  /** Undefined in a machine that runs one program. */
  container?: string
  cpu: number
  rss: number
  listen_sockets: ListenSocket[]
}

export interface ListenSocket {
  /** tcp, tcp6, udp or udp6. */
  proto: string
  /** Address and port; an IPv6 address is in brackets. */
  address: string
}

interface MachineMemory {
  limitBytes: number
  /** Excludes the page cache, which the kernel can give up. */
  usedBytes: number
}

export interface LogLine {
  at: number
  stream: 'stdout' | 'stderr' | 'platform'
  text: string
  /** Undefined in a machine that runs one program. */
  container?: string
}

/** The machine cannot be started as it is described, so retrying does not help. The message is shown to its owner. */
export class MachineStartError extends Error {}

/** Runs the programs of images, each in a box of its own, under the host's supervisor. */
export interface MachineDriver {
  isolation(): Promise<Isolation>
  /**
   * Starts the program of this version unless it is already running; a frozen one is resumed. When this returns the
   * program may have exited again, which `exits` tells. Throws when no program could be started: a `MachineStartError`
   * when the owner has to change something.
   */
  startMachine(spec: MachineSpec): Promise<void>
  /** Reports on this version; the program of an earlier version counts as not running. */
  inspectMachine(id: string, instanceId: string): MachineProcess
  /** Calls the listener when a program has exited by itself. Returns the function that unsubscribes. */
  onChange(listener: (id: string) => void): () => void
  /** Ends all processes of the machine, frozen ones too, and keeps it down. */
  stopMachine(id: string, how: StopOptions): Promise<void>
  /** Reports what the health checks found; ignored unless this run of the container still runs. */
  reportHealth(id: string, container: string, run: number, health: 'healthy' | 'unhealthy'): void
  /** Sends it to the programs of all containers. Returns false when no program is running. */
  signalMachine(id: string, signal: string): Promise<boolean>
  /** Returns false on hosts without a cgroup freezer. */
  freezeMachine(id: string): Promise<boolean>
  thawMachine(id: string): Promise<void>
  /**
   * Applies the policy to the running program, its open connections and all later starts. Returns false while a program
   * is just being started, possibly with the previous policy: then the caller has to try again.
   */
  applyTrafficPolicy(traffic: MachineTraffic): Promise<boolean>
  /** Runs a command inside; the child process exits with the command's exit code. */
  spawnInMachine(target: ExecTarget, command: BoxCommand): ChildProcess
  /** Runs a command inside that may have a terminal and that outlives this process. */
  startSession(target: ExecTarget, command: BoxCommand, start: SessionStart, events: SessionEvents): BoxSession
  listProcesses(id: string): Promise<MachineProcessEntry[]>
  /** Returns undefined when the machine is not running. */
  listListening(id: string): ListenSocket[] | undefined
  /** Returns undefined when the machine is not running, and on hosts without control groups. */
  readMemory(id: string): MachineMemory | undefined
  /** Changes the limit until the next start. Returns false when the machine uses more than that. */
  setMemoryLimit(id: string, bytes: number): Promise<boolean>
  /** Returns how many bytes were given back to the host. */
  reclaimMemory(id: string, bytes: number): Promise<number>
  /** Adds a line of the platform to the log; does nothing while the machine has no logger. */
  writeLog(id: string, text: string): void
  /** Returns the last lines, oldest first. The log of a removed machine is kept for a while. */
  readLog(id: string, lines: number): Promise<LogLine[]>
  /** Returns about `lines` lines printed after this time, oldest first; lines with the same time stay together. */
  readLogAfter(id: string, afterMs: number, lines: number): Promise<LogLine[]>
  /** Yields the last `lines` lines and then new ones until aborted. */
  followLog(id: string, lines: number, signal: AbortSignal): AsyncIterable<LogLine>
  /** Removes its processes, mounts, network interfaces, control groups and files. The end of its log is kept. */
  removeMachine(id: string, slot: number): Promise<void>
  /** Deletes the logs of removed machines that are too old, and the oldest if all together are too large. */
  trimKeptLogs(): Promise<void>
}
