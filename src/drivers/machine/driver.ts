import type { ChildProcess } from 'node:child_process'
import type { TrafficPolicy } from '../../model/app/network-policy.ts'
import type { BoxCommand, Isolation } from '../box/driver.ts'
import type { GroupMemory } from '../host/cgroup-memory.ts'

/** What a machine runs from. Everything outside that it needs has a name that follows from `id` and `slot`. */
export interface MachineSpec {
  /** 14 hexadecimal digits. */
  id: string
  /** Of its version: another one is another program, with a root filesystem of its own. */
  instanceId: string
  /** As for boxes; both share the numbers. */
  slot: number
  hostname: string
  /** Its name in full, as it knows itself. */
  fqdn?: string
  /** Unpacked layers of its image, lowest first. */
  layers: string[]
  /** The program with its arguments; names are looked up in PATH of `env` inside. */
  argv: string[]
  /** Everything it gets, secrets too. */
  env: Record<string, string>
  /** As an image writes it: name or number, with or without a group. Root when empty. */
  user: string
  workingDir: string
  files: { path: string; content: Buffer; mode: number }[]
  limits: { memoryMb: number; swapMb?: number; cpus: number; pids: number }
  mounts: { volumeId: string; path: string }[]
  restart: { policy: 'no' | 'always' | 'on-failure'; maxRetries: number }
  stop: { signal: string; timeoutMs: number }
  /** What was written to its root stays over a stop. */
  keepsRoot: boolean
  /** What it may write there, where that can be limited. */
  rootGb?: number
  /** Where it stands in its private network; undefined where there are none on this host. */
  network?: { number: number; resolver: string }
  /** What it may receive and send, beside what the platform carries. */
  policy?: TrafficPolicy
  /** What its resolver is told: whom to ask when not the one of the platform, what is added to short names, how to ask. */
  dns?: { nameservers: string[]; searches: string[]; options: string[] }
}

/** Where it stands, and what it is held to there. */
export type MachineTraffic = Pick<MachineSpec, 'id' | 'network' | 'policy'>

/** What enters it sees what its program sees. */
export type MachineEntrance = Pick<MachineSpec, 'id' | 'slot' | 'env' | 'user' | 'workingDir'>

/** One end of its program. */
export interface MachineExit {
  /** Grows by one with each end in the life of a version. Only the last ones are kept. */
  number: number
  /** In milliseconds since 1970, as all times here. */
  at: number
  /** 128 and the signal after one, as for a shell: a program that ends with such a code by itself looks the same. */
  exitCode: number
  /** 0 when there was none. */
  signal: number
  oomKilled: boolean
  /** It was told to stop. */
  requested: boolean
  /** The supervisor starts it again. */
  restarting: boolean
}

export type MachineProcess =
  | { is: 'absent' }
  /** Not running and not about to. */
  | { is: 'down'; exits: MachineExit[] }
  /** Down for a moment, until the supervisor starts it again. */
  | { is: 'waiting'; exits: MachineExit[] }
  | { is: 'up'; pid: number; since: number; frozen: boolean; exits: MachineExit[] }

export interface MachineProcessEntry {
  pid: number
  stime: number
  rtime: number
  command: string
  directory: string
  cpu: number
  rss: number
  listen_sockets: { proto: string; address: string }[]
}

export interface LogLine {
  at: number
  stream: 'stdout' | 'stderr' | 'platform'
  text: string
}

/** It cannot be started as it is described, so that repeating does not help. The message is for its owner. */
export class MachineStartError extends Error {}

/** Programs of users, each in a box of its own made from an image, kept running by the supervisor of the host. */
export interface MachineDriver {
  isolation(): Promise<Isolation>
  /**
   * Afterwards its program has been started, by this version, and may have ended again: `exits` tells. Starts nothing
   * when that runs already; a frozen one goes on. Throws when no program could be started, with the reason: a
   * `MachineStartError` when that is for the owner to remove.
   */
  startMachine(spec: MachineSpec): Promise<void>
  /** Of this version; what ran of an earlier one does not count. */
  inspectMachine(id: string, instanceId: string): MachineProcess
  /** Called when something may have changed by itself: a program ended. */
  onChange(listener: (id: string) => void): () => void
  /** Nothing of it runs afterwards, and it stays so. A frozen one is ended. */
  stopMachine(id: string, how: { signal: string; timeoutMs: number }): Promise<void>
  /** False when there is nothing to signal. */
  signalMachine(id: string, signal: string): Promise<boolean>
  /** False where the host has nothing to hold it still with. */
  freezeMachine(id: string): Promise<boolean>
  thawMachine(id: string): Promise<void>
  /**
   * Its program and all later ones are held to the policy from now on, and existing connections too. False while a
   * program is just being started, which may be held to the one before: then to be called again.
   */
  holdMachine(traffic: MachineTraffic): Promise<boolean>
  /** As in a box: ends with the command's code. */
  spawnInMachine(entrance: MachineEntrance, command: BoxCommand): ChildProcess
  listProcesses(id: string): Promise<MachineProcessEntry[]>
  /** Undefined when it does not run, and where there are no control groups. */
  readMemory(id: string): GroupMemory | undefined
  /** Until it starts the next time. False when it needs more than that. */
  setMemoryLimit(id: string, bytes: number): Promise<boolean>
  /** How much of it was given back to the host. */
  reclaimMemory(id: string, bytes: number): Promise<number>
  /** The last lines, oldest first. */
  readLog(id: string, lines: number): Promise<LogLine[]>
  /** Those after this time, oldest first: about so many, and never only some of those of one moment. */
  readLogAfter(id: string, afterMs: number, lines: number): Promise<LogLine[]>
  /** From now on, and the last `lines` before it, until aborted. */
  followLog(id: string, lines: number, gone: AbortSignal): AsyncIterable<LogLine>
  /** Nothing of it is left: no process, mount, interface, group, file or log. */
  removeMachine(id: string, slot: number): Promise<void>
}
