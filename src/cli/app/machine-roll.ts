// Rolling updates: a machine is updated only when the one before is started and healthy.
import type { Lease, LogLine } from '../api-types.ts'
import { request, type Session } from '../client.ts'
import { ApiError, CommandError } from '../errors.ts'
import { type Progress, pollUntil } from '../progress.ts'
import {
  describeExit,
  describeRestarts,
  type ExitEvent,
  getMachine,
  isStoppedOnPurpose,
  type Machine,
  type MachineConfig,
  type MachineEvent,
  machinePath,
  unexpectedState,
  waitForState,
  waitUntilSettled,
} from './machine-find.ts'

export interface Rollout {
  session: Session
  app: string
  progress: Progress
  /** The time each machine has to become started and healthy. */
  waitSeconds: number
}

export interface MachineChange {
  machine: Machine
  config: MachineConfig
}

/** Updates machines in batches, each under a lease. When one fails, the remaining machines are not touched. */
export async function rollOut(rollout: Rollout, changes: MachineChange[], batchSize = 1): Promise<void> {
  try {
    for (let start = 0; start < changes.length; start += batchSize) {
      const batch = changes.slice(start, start + batchSize)
      const results = await Promise.allSettled(
        batch.map((change, index) => updateMachine(rollout, change, formatPosition(start + index + 1, changes.length))),
      )
      const failed = results.find((result) => result.status === 'rejected')
      if (failed) throw failed.reason
    }
  } finally {
    rollout.progress.end()
  }
}

export function formatPosition(number: number, of: number): string {
  return of > 1 ? ` (${number} of ${of})` : ''
}

async function updateMachine(rollout: Rollout, { machine, config }: MachineChange, position: string): Promise<void> {
  const { session, app, progress } = rollout
  progress.show(`Updating machine ${machine.id}${position}`)
  await underLease(session, machinePath(app, machine.id), async (path, nonce) => {
    const body = { config, current_version: machine.instance_id }
    await request<Machine>(session, 'POST', path, body, nonce)
    await withLastLogLines(rollout, machine.id, async () => {
      const { state } = await waitUntilSettled(session, app, machine, rollout.waitSeconds)
      if (isStoppedOnPurpose(machine) && state === 'stopped') return
      // A machine that had failed, or was given up after too many restarts, is started again.
      if (machine.failure && state === 'stopped') await request(session, 'POST', `${path}/start`, {}, nonce)
      await waitUntilUp(rollout, machine.id)
    })
  })
}

/** Holds a lease on each of the machines, whose nonces `run` gets by machine id. */
export async function underLeases<T>(
  rollout: Pick<Rollout, 'session' | 'app'>,
  ids: string[],
  run: (nonces: Map<string, Record<string, string>>) => Promise<T>,
  held = new Map<string, Record<string, string>>(),
): Promise<T> {
  const [id, ...rest] = ids
  if (id === undefined) return run(held)
  return underLease(rollout.session, machinePath(rollout.app, id), (_, nonce) =>
    underLeases(rollout, rest, run, held.set(id, nonce)),
  )
}

const leaseSeconds = 30

/** Holds a short lease and renews it, so that it expires soon if this process dies. */
export async function underLease<T>(
  session: Session,
  path: string,
  run: (path: string, nonce: Record<string, string>) => Promise<T>,
): Promise<T> {
  const body = { ttl: leaseSeconds, description: 'berth' }
  const lease = await request<Lease>(session, 'POST', `${path}/lease`, body)
  const nonce = { 'fly-machine-lease-nonce': lease.data.nonce }
  const renewal = setInterval(
    () => request(session, 'POST', `${path}/lease`, body, nonce).catch(() => undefined),
    (leaseSeconds / 3) * 1000,
  )
  try {
    return await run(path, nonce)
  } finally {
    clearInterval(renewal)
    await request(session, 'DELETE', `${path}/lease`, undefined, nonce).catch(() => undefined)
  }
}

/** Waits until the machine is started and its checks pass; without checks its program must stay up for a moment. */
export async function waitUntilUp(rollout: Rollout, id: string): Promise<void> {
  const machine = await waitForState(rollout.session, rollout.app, { id }, 'started', rollout.waitSeconds)
  if (machine.checks?.length) await waitUntilHealthy(rollout, id)
  else await waitThatStaysUp(rollout, machine)
}

async function waitUntilHealthy(rollout: Rollout, id: string): Promise<void> {
  const deadline = Date.now() + rollout.waitSeconds * 1000
  await pollUntil(
    rollout.progress,
    () => getMachine(rollout.session, rollout.app, id),
    (seen) => {
      const failing = (seen.checks ?? []).filter(({ status }) => status !== 'passing')
      if (seen.state !== 'started') throw unexpectedState(seen, 'started')
      // A check may have passed just before the program exited.
      if (failing.length === 0 && !seen.next_restart_at) return undefined
      const names = failing.map(({ name }) => name).join(', ')
      if (Date.now() > deadline) throw unhealthy(seen, failing, rollout.waitSeconds)
      return names ? `Waiting for checks of machine ${id}: ${names}` : `Machine ${id} is restarting`
    },
  )
}

function unhealthy(seen: Machine, failing: NonNullable<Machine['checks']>, seconds: number): CommandError {
  const crashes = seen.restart_count > 0 && seen.last_exit && describeRestarts(seen)
  if (failing.length === 0) return new CommandError(`machine ${seen.id} is not up after ${seconds} s: ${crashes}`)
  const names = failing.map(({ name }) => name).join(', ')
  const said = crashes || failing.map(({ output }) => output).find(Boolean)
  return new CommandError(`machine ${seen.id}: ${names} did not pass within ${seconds} s${said ? `: ${said}` : ''}`)
}

const lookSeconds = 10 // the platform gives a program five to open its ports

/** Returns what the platform warns of in a running machine with services, once it has looked. */
export async function readWarnings({ session, app, progress }: Rollout, id: string): Promise<string[]> {
  const deadline = Date.now() + lookSeconds * 1000
  const seen = await pollUntil(
    progress,
    () => getMachine(session, app, id),
    ({ config, state, warnings }) => {
      const isComing = config.services?.length && state === 'started' && warnings === undefined
      return isComing && Date.now() < deadline ? `Looking at the ports of machine ${id}` : undefined
    },
  )
  return seen.warnings ?? []
}

export const minUpMs = 2000

async function waitThatStaysUp({ session, app, progress }: Rollout, started: Machine): Promise<void> {
  const deadline = Date.now() + minUpMs
  await pollUntil(
    progress,
    () => getMachine(session, app, started.id),
    (seen) => {
      const exit = exitSinceStart(seen)
      if (exit)
        throw new CommandError(`the program of machine ${seen.id} ${describeExit(exit)} right after it was started`)
      if (seen.state !== 'started') throw unexpectedState(seen, 'started')
      return Date.now() > deadline ? undefined : `Machine ${seen.id} is started`
    },
  )
}

function exitSinceStart({ events = [] }: Machine): ExitEvent | undefined {
  const start = events.findIndex(({ type }) => ['launch', 'update', 'start'].includes(type))
  const since = start < 0 ? events : events.slice(0, start)
  return since.find(({ request }) => request?.exit_event)?.request?.exit_event
}

const logLineCount = 10

/** Adds the last log lines of the current version of the machine to an error, because they often show the cause. */
export async function withLastLogLines<T>(
  { session, app }: Pick<Rollout, 'session' | 'app'>,
  id: string,
  run: () => Promise<T>,
): Promise<T> {
  try {
    return await run()
  } catch (error) {
    if (!(error instanceof CommandError || error instanceof ApiError)) throw error
    const said = await readLastLogLines(session, app, id)
    if (said.length === 0) throw error
    const details = [`Last log lines of machine ${id}:`, ...said.map((line) => `  ${line}`)]
    throw new CommandError(error.message, { cause: error, details })
  }
}

/** Returns no lines when the log cannot be read, so that the original error is reported. */
async function readLastLogLines(session: Session, app: string, id: string): Promise<string[]> {
  const { readEvents } = await import('../stream.ts')
  const path = `${machinePath(app, id)}/logs?lines=${logLineCount}`
  const said: string[] = []
  try {
    const events = await request<MachineEvent[]>(session, 'GET', `${machinePath(app, id)}/events?limit=${maxEvents}`)
    const since = endOfPreviousVersion(events)
    for await (const { timestamp, message } of readEvents<LogLine>(session, { method: 'GET', path }))
      if (Date.parse(timestamp) >= since) said.push(message)
  } catch {
    return []
  }
  return said
}

const maxEvents = 50 // the most that the platform returns

/**
 * Returns the time from which the log is that of the current version: when the program of the previous one exited for the
 * last update or, if it was not running, the time of the update. `events` are newest first.
 */
export function endOfPreviousVersion(events: MachineEvent[]): number {
  const update = events.findIndex(({ type }) => type === 'update')
  if (update < 0) return 0
  const exits = events.slice(0, update).flatMap(({ request }) => request?.exit_event ?? [])
  const replaced = exits.at(-1)
  const exitedAt = replaced?.requested_stop ? Date.parse(replaced.exited_at) : 0
  return Math.max(exitedAt, events[update]!.timestamp)
}
