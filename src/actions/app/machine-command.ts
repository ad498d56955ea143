import { type MachineDetails, type MachineState, machineStates, runningStates } from '../../model/app/machine.ts'
import { checkMetadata } from '../../model/app/machine-config-env.ts'
import { checkSignal } from '../../model/app/machine-config-stop.ts'
import { goDurationMs } from '../../model/duration.ts'
import { badRequest, preconditionFailed } from '../../model/errors.ts'
import { getVisibleMachine, listVersions, type MachineVersion, machineNotFound } from '../../store/app/machine.ts'
import {
  destroyMachine,
  launchMachine,
  restartMachine,
  setCordoned,
  setMetadata,
  stopMachine,
  suspendMachine,
} from '../../store/app/machine-command.ts'
import { listMachineEvents } from '../../store/app/machine-event.ts'
import type { Context } from '../context.ts'
import { changeLeasedMachine, changeMachine, type MachineKey } from './machine-lease.ts'

/** The message has the wording that flyctl parses. */
export function requireCommand({ state }: Pick<MachineDetails, 'state'>, command: string): void {
  const { commands = {} } = machineStates[state] as { commands?: Record<string, string> }
  if (commands[command] !== undefined) return
  throw preconditionFailed(`failed_precondition: unable to ${command} machine from current state: '${state}'`)
}

/** Returns the previous state. A running machine is left as it is. */
export function startMachineOf(ctx: Context, key: MachineKey): Promise<MachineState> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    if (machine.state === 'started' || machine.state === 'starting') return machine.state
    requireCommand(machine, 'start')
    await launchMachine(tx, machine, 'start')
    return machine.state
  })
}

export interface StopRequest {
  signal?: string | number | undefined
  timeout?: string | number | undefined
}

/** States in which a stop command has nothing to do. */
const stoppedStates: readonly MachineState[] = ['created', 'stopped', 'stopping']

export function stopMachineOf(ctx: Context, key: MachineKey, request: StopRequest): Promise<void> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    const how = readStop(request)
    if (stoppedStates.includes(machine.state)) return
    requireCommand(machine, 'stop')
    await stopMachine(tx, machine.id, how)
  })
}

export function restartMachineOf(
  ctx: Context,
  key: MachineKey,
  request: StopRequest & { force: boolean },
): Promise<void> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    const how = request.force ? { signal: 'SIGKILL', timeoutMs: 0 } : readStop(request)
    if (machine.state === 'restarting') return
    requireCommand(machine, 'restart')
    await restartMachine(tx, machine.id, how)
  })
}

const maxStopMs = 300_000

function readStop({ signal, timeout }: StopRequest): { signal: string | null; timeoutMs: number | null } {
  const timeoutMs = timeout === undefined || timeout === '' ? null : readTimeout(timeout)
  if (signal === undefined || signal === '') return { signal: null, timeoutMs }
  return { signal: String(checkSignal('signal', signal)), timeoutMs }
}

/** Clients send Go durations, digits as seconds, and numbers as nanoseconds. */
function readTimeout(timeout: string | number): number {
  const ms = typeof timeout === 'string' && /^\d+$/.test(timeout) ? Number(timeout) * 1000 : goDurationMs(timeout)
  if (ms === undefined || ms < 0 || ms > maxStopMs)
    throw badRequest('timeout must be a duration such as 10s, at most 5m')
  return Math.round(ms)
}

export function suspendMachineOf(ctx: Context, key: MachineKey): Promise<void> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    if (machine.state === 'suspended' || machine.state === 'suspending') return
    requireCommand(machine, 'suspend')
    await suspendMachine(tx, machine.id)
  })
}

export function cordonMachine(ctx: Context, key: MachineKey, cordoned: boolean): Promise<void> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    if (machine.state === 'destroyed') throw machineNotFound()
    if (machine.cordoned !== cordoned) await setCordoned(tx, machine.id, cordoned)
  })
}

export function deleteMachineOf(ctx: Context, key: MachineKey, force: boolean): Promise<void> {
  return changeLeasedMachine(ctx, key, async (tx, machine) => {
    if (['destroying', 'destroyed', 'launch_failed'].includes(machine.state)) return
    if (!force && runningStates.includes(machine.state)) {
      throw preconditionFailed(
        `failed_precondition: unable to destroy machine from current state: '${machine.state}'; stop it first or delete with force=true`,
      )
    }
    await destroyMachine(tx, machine.id)
  })
}

export async function listEventsOf(ctx: Context, app: string, id: string, limit: number) {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return listMachineEvents(ctx.db, machine.id, limit)
}

export async function listVersionsOf(ctx: Context, app: string, id: string): Promise<MachineVersion[]> {
  const { machine } = await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
  return listVersions(ctx.db, machine.id)
}

/** Null and empty values delete their key; keys that are not given stay. */
export function changeMetadata(
  ctx: Context,
  key: Pick<MachineKey, 'app' | 'id'>,
  changes: Record<string, string | null>,
  version?: string,
): Promise<void> {
  return changeMachine(ctx, key, async (tx, machine) => {
    if (machine.state === 'destroyed') throw machineNotFound()
    if (version && version !== machine.instanceId) {
      throw preconditionFailed('failed_precondition: machine_version is not the current version of the machine')
    }
    const changed = { ...machine.config.metadata, ...changes }
    const entries = Object.entries(changed).filter(([, value]) => value !== null && value !== '')
    const metadata = Object.fromEntries(entries) as Record<string, string>
    checkMetadata('metadata', metadata)
    await setMetadata(tx, machine.id, metadata)
  })
}
