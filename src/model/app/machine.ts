import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import type { ContainerState } from './container/config.ts'
import type { MachineConfig } from './machine-config.ts'

export const machineStates = defineStates({
  created: {
    commands: {
      launch: 'starting',
      'skip launch': 'stopped',
      start: 'starting',
      update: 'replacing',
      delete: 'destroying',
    },
  },
  starting: {
    commands: { stop: 'stopping', update: 'replacing', delete: 'destroying' },
    outcomes: { up: 'started', failed: 'failed', 'launch failed': 'launch_failed' },
    deadlineMinutes: 15,
  },
  started: {
    commands: {
      stop: 'stopping',
      restart: 'restarting',
      suspend: 'suspending',
      update: 'replacing',
      delete: 'destroying',
    },
    outcomes: { exited: 'stopped', 'gave up': 'stopped', failed: 'failed', 'destroy itself': 'destroying' },
    keeps: 'running',
  },
  stopping: {
    commands: { delete: 'destroying' },
    outcomes: { down: 'stopped', failed: 'failed', 'destroy itself': 'destroying' },
    deadlineMinutes: 10,
  },
  stopped: { commands: { start: 'starting', update: 'replacing', delete: 'destroying' } },
  restarting: {
    commands: { stop: 'stopping', update: 'replacing', delete: 'destroying' },
    outcomes: { up: 'started', failed: 'failed' },
    deadlineMinutes: 15,
  },
  suspending: {
    commands: { delete: 'destroying' },
    outcomes: { frozen: 'suspended', failed: 'failed', exited: 'stopped' },
    deadlineMinutes: 10,
  },
  suspended: { commands: { start: 'starting', stop: 'stopping', update: 'replacing', delete: 'destroying' } },
  replacing: {
    commands: { delete: 'destroying' },
    outcomes: { up: 'started', kept: 'stopped', failed: 'failed' },
    deadlineMinutes: 15,
  },
  failed: {
    commands: {
      start: 'starting',
      stop: 'stopping',
      restart: 'restarting',
      update: 'replacing',
      delete: 'destroying',
    },
  },
  launch_failed: { commands: { delete: 'destroying' }, outcomes: { gone: 'destroyed' } },
  destroying: { outcomes: { gone: 'destroyed' } },
  destroyed: {},
})
export type MachineState = State<typeof machineStates>

/** The resolved image reference. */
export interface ImageRef {
  registry: string
  repository: string
  tag: string
  digest: string
  labels: Record<string, string>
}

export interface Machine {
  /** 14 hexadecimal digits. */
  id: string
  appId: string
  name: string
  state: MachineState
  stateSince: Micros
  progressAt: Micros | null
  region: string
  /** The id of its current version, a ULID. */
  instanceId: string
  config: MachineConfig
  /** Null until the reference is resolved. */
  image: ImageRef | null
  /** The images of its containers by the names of these, as far as they are resolved. Null without containers. */
  containerImages: Record<string, ImageRef> | null
  /** Null without containers, and while it does not run. */
  containers: ContainerState[] | null
  /** Null once the machine is removed. */
  slot: number | null
  networkNumber: number
  /** Whether it should run after the current transition. */
  wanted: boolean
  cordoned: boolean
  restartCount: number
  /** How its program last exited since the last start. */
  lastExit: ExitEvent | null
  /** When its program is started again after that exit. In the past, it was. */
  nextRestartAt: Micros | null
  /** What its owner should know while it runs. Null until the program was looked at. */
  warnings: string[] | null
  failure: string | null
  stopSignal: string | null
  stopTimeoutMs: number | null
  secretsVersion: number
  /** Whether the app's network policies changed since they were applied to the machine. */
  policiesChanged: boolean
  /** The number of the last process exit that was recorded as an event. */
  exitsSeen: number
  /** Whether any version of it has run. */
  launched: boolean
  createdAt: Micros
  updatedAt: Micros
}

/** States that last until the next command. */
export const settledStates: readonly MachineState[] = [
  'created',
  'started',
  'stopped',
  'suspended',
  'failed',
  'destroyed',
]

/** States in which a machine is deleted only with force. */
export const runningStates: readonly MachineState[] = [
  'started',
  'starting',
  'stopping',
  'restarting',
  'suspending',
  'replacing',
]

export type EventSource = 'user' | 'flyd' | 'proxy'

export interface ExitEvent {
  exit_code: number
  guest_exit_code: number
  guest_signal: number
  guest_error: string
  oom_killed: boolean
  requested_stop: boolean
  restarting: boolean
  signal: number
  error: string
  exited_at: string
  /** The container that exited; absent when the machine did. */
  container?: string
}

export interface EventRequest {
  exit_event?: ExitEvent
  restart_count?: number
  /** Why the operation failed. */
  error?: string
}

export interface MachineEvent {
  id: string
  type: string
  status: string
  source: EventSource
  /** Milliseconds since the epoch. */
  timestamp: number
  request: EventRequest | null
}

export interface CheckResult {
  name: string
  status: 'passing' | 'warning' | 'critical'
  output: string
  /** The timestamp format of PostgreSQL's JSON. */
  updatedAt: string
}

export interface MachineLease {
  nonce: string
  owner: string
  description: string
  /** Seconds since the epoch. */
  expiresAt: number
}

/** A machine with its events, checks, volumes and lease. */
export interface MachineDetails extends Machine {
  /** The attached volumes by their ids; null without any. */
  volumes: Record<string, { name: string; sizeGb: number }> | null
  events: MachineEvent[]
  checks: CheckResult[]
  /** Null when there is no current lease. */
  lease: MachineLease | null
}

export const machineIdPattern = /^[0-9a-f]{14}$/
