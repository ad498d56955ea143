import type * as Api from '../api-types.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { ApiError, CommandError } from '../errors.ts'

export interface MachineConfig {
  image: string
  env?: Record<string, string>
  init?: { exec?: string[]; entrypoint?: string[]; cmd?: string[]; swap_size_mb?: number }
  guest?: { cpu_kind?: string; cpus?: number; memory_mb?: number }
  size?: string
  metadata?: Record<string, string>
  services?: Service[]
  checks?: Record<string, object>
  mounts?: Mount[]
  auto_destroy?: boolean
  restart?: { policy?: string; max_retries?: number }
  stop_config?: { signal?: string; timeout?: string }
  containers?: { name: string; image: string }[]
  schedule?: string | undefined
  standbys?: string[]
}

export interface Mount {
  volume?: string
  name?: string
  path: string
  size_gb?: number
  extend_threshold_percent?: number
  add_size_gb?: number
  size_gb_limit?: number
}

export interface Service {
  protocol: string
  internal_port: number
  ports?: { port?: number; start_port?: number; end_port?: number; handlers?: string[] }[]
  checks?: object[]
}

/** OpenAPI leaves the configuration and the details of events open; these are the parts that the CLI reads. */
export interface Machine extends Omit<Api.Machine, 'config' | 'events' | 'last_exit'> {
  config: MachineConfig
  last_exit?: ExitEvent
  events?: MachineEvent[]
}

export interface MachineEvent extends Omit<Api.MachineEvent, 'request'> {
  request?: { exit_event?: ExitEvent; error?: string }
}

export interface ExitEvent {
  exit_code: number
  guest_signal: number
  oom_killed: boolean
  requested_stop: boolean
  exited_at: string
}

export function machinesPath(app: string): string {
  return `/v1/apps/${encodeSegment(app)}/machines`
}

export function machinePath(app: string, id: string): string {
  return `${machinesPath(app)}/${encodeSegment(id)}`
}

export function listMachines(session: Session, app: string): Promise<Machine[]> {
  return request<Machine[]>(session, 'GET', machinesPath(app))
}

export function getMachine(session: Session, app: string, id: string): Promise<Machine> {
  return request<Machine>(session, 'GET', machinePath(app, id))
}

/** The process group that a deployment recorded; undefined for a machine that was created by hand. */
export function groupOf({ config }: Pick<Machine, 'config'>): string | undefined {
  return config.metadata?.fly_process_group
}

export const releaseGroup = 'fly_app_release_command'

/** True when a caller stopped the machine or its program finished, not when it failed. */
export function isStoppedOnPurpose({ state, failure }: Machine): boolean {
  return ['stopped', 'suspended', 'created'].includes(state) && !failure
}

/** Metadata of machines that a blue-green deployment is exchanging: `new` or `old`. */
export const replacementMark = 'berth_bluegreen'

/** True for a machine that an interrupted blue-green deployment left. */
export function isLeftover({ config }: Pick<Machine, 'config'>): boolean {
  return config.metadata?.[replacementMark] !== undefined
}

/** Groups the machines that deployments created by process group. */
export function groupMachines(machines: Machine[]): Map<string, Machine[]> {
  const groups = new Map<string, Machine[]>()
  for (const machine of machines) {
    const group = groupOf(machine)
    if (group === undefined || group === releaseGroup || isLeftover(machine)) continue
    groups.set(group, [...(groups.get(group) ?? []), machine])
  }
  return groups
}

// Below the 30 s timeout of a request.
const maxRequestWaitSeconds = 20

const settledStates = ['created', 'started', 'stopped', 'suspended', 'failed', 'destroyed']

/** Waits until the machine is in one of the wanted states, by default in any state that is not transitional. */
export async function waitUntilSettled(
  session: Session,
  app: string,
  machine: Pick<Machine, 'id'>,
  seconds: number,
  wanted = settledStates,
): Promise<Machine> {
  const deadline = Date.now() + seconds * 1000
  for (;;) {
    const leftSeconds = Math.ceil((deadline - Date.now()) / 1000)
    const query = new URLSearchParams({
      state: wanted.join(','),
      timeout: String(Math.max(0, Math.min(leftSeconds, maxRequestWaitSeconds))),
    })
    try {
      await request(session, 'GET', `${machinePath(app, machine.id)}/wait?${query}`)
      const seen = await getMachine(session, app, machine.id)
      // The state may have changed again since the wait ended, for example when the program exits at once.
      if (wanted.includes(seen.state)) return seen
      if (leftSeconds > 0) continue
      throw new CommandError(`machine ${machine.id} is still ${seen.state} after ${seconds} s`)
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 408)) throw error
      if (leftSeconds > 0) continue
      const { state } = await getMachine(session, app, machine.id)
      throw new CommandError(`machine ${machine.id} is still ${state} after ${seconds} s`)
    }
  }
}

/** Throws with the reason when the machine settles in a different state. */
export async function waitForState(
  session: Session,
  app: string,
  machine: Pick<Machine, 'id'>,
  state: string,
  seconds: number,
): Promise<Machine> {
  const seen = await waitUntilSettled(session, app, machine, seconds)
  if (seen.state !== state) throw unexpectedState(seen, state)
  return seen
}

export function unexpectedState(machine: Machine, state: string): CommandError {
  const exit = machine.events?.find(({ request }) => request?.exit_event)?.request?.exit_event
  const reason = machine.failure ?? (exit ? `its program ${describeExit(exit)}` : '')
  return new CommandError(`machine ${machine.id} is ${machine.state}, not ${state}${reason ? `: ${reason}` : ''}`)
}

export function describeExit({ exit_code, guest_signal, oom_killed }: ExitEvent): string {
  if (oom_killed) return 'ran out of memory'
  return guest_signal > 0 ? `was killed by signal ${guest_signal}` : `exited with code ${exit_code}`
}

/** Describes how often and why the program of a machine was restarted. */
export function describeRestarts({ restart_count: count, last_exit: exit, next_restart_at: next }: Machine): string {
  const often = `its program was restarted ${count === 1 ? 'once' : `${count} times`}`
  return `${often}${exit ? ` and last ${describeExit(exit)}` : ''}${next ? `; it starts again at ${next}` : ''}`
}
