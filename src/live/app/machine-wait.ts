import { type MachineState, machineStates, settledStates } from '../../model/app/machine.ts'
import { BerthError, badRequest, preconditionFailed } from '../../model/errors.ts'
import { ulidPattern } from '../../model/ids.ts'
import { getVisibleMachine, listVersions, machineNotFound, readMachineState } from '../../store/app/machine.ts'
import { findEventAfter, listMachineEvents } from '../../store/app/machine-event.ts'
import type { LiveContext } from '../context.ts'

export interface WaitRequest {
  states: string[]
  /** The version to wait for; empty for the current one. */
  version: string
  /** Ignores states from before this event. */
  fromEventId: string
  timeoutSeconds: number
  /** Aborted when the client disconnects. */
  gone?: AbortSignal
}

export interface WaitResult {
  state: string
  version: string
  eventId: string
}

const settled = 'settled'

/** Waits for a state. The feed reports every committed change; polling covers lost notifications. */
export async function waitForMachine(
  ctx: LiveContext,
  app: string,
  id: string,
  request: WaitRequest,
): Promise<WaitResult> {
  const deadline = performance.now() + request.timeoutSeconds * 1000
  let wake = () => {}
  const unsubscribe = ctx.machineFeed.subscribe((change) => {
    if (change === undefined || change.machineId === id) wake()
  })
  try {
    await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
    const states = readStates(request.states)
    if (request.fromEventId && !ulidPattern.test(request.fromEventId))
      throw badRequest('from_event_id is not the id of an event')
    for (;;) {
      const changed = new Promise<void>((resolve) => {
        wake = resolve
      })
      const found = await findResult(ctx, id, request, states)
      if (found.result) return found.result
      const left = deadline - performance.now()
      if (left <= 0) {
        throw new BerthError('timeout', `deadline_exceeded: ${notReached(request, found.state)}`)
      }
      await resolveWithin(changed, Math.min(left, pollMs))
    }
  } finally {
    unsubscribe()
  }
}

const pollMs = 5_000

/** Clients recognize this wording and stop waiting. */
function notReached({ states }: WaitRequest, state: string): string {
  return `machine failed to reach desired state, ${states.join(',')}, currently ${state}`
}

export async function resolveWithin(changed: Promise<void>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
  })
  await Promise.race([changed, timeout])
  clearTimeout(timer)
}

function readStates(words: string[]): ReadonlySet<string> {
  const states = new Set<string>()
  for (const word of words) {
    if (word === settled) for (const state of settledStates) states.add(state)
    else if (Object.hasOwn(machineStates, word)) states.add(word)
    else throw badRequest(`state must be one of ${[...Object.keys(machineStates), settled].join(', ')}`)
  }
  return states
}

/** A replaced version counts as being in these states. */
const finalStates: readonly MachineState[] = ['stopped', 'destroyed']

async function findResult(
  ctx: LiveContext,
  id: string,
  request: WaitRequest,
  states: ReadonlySet<string>,
): Promise<{ state: string; result?: WaitResult }> {
  const now = await readMachineState(ctx.db, id)
  if (!now) throw machineNotFound()
  const { state, instanceId } = now
  if (request.version && request.version !== instanceId) return findResultOfOld(ctx, id, request, states, state)
  const eventId = now.eventId ?? ''
  if (request.fromEventId) {
    const event = await findEventAfter(ctx.db, id, request.fromEventId, [...states])
    return event ? { state, result: { state: event.status, version: instanceId, eventId: event.id } } : { state }
  }
  if (states.has(state)) return { state, result: { state, version: instanceId, eventId } }
  if (state === 'destroyed') {
    const passed = await findStateBeforeItsEnd(ctx, id, states)
    if (passed) return { state, result: { state: passed, version: instanceId, eventId } }
    const why = now.failure === null ? '' : `: ${now.failure}`
    throw preconditionFailed(`failed_precondition: ${notReached(request, state)}${why}`)
  }
  return { state }
}

/** A machine that destroyed itself may have been in the state too briefly for the client to see it. */
async function findStateBeforeItsEnd(
  ctx: LiveContext,
  id: string,
  states: ReadonlySet<string>,
): Promise<string | undefined> {
  const events = await listMachineEvents(ctx.db, id, eventsBeforeItsEnd)
  const changes = events.filter(({ type }) => type !== 'exit' && type !== 'restart')
  const end = changes.findIndex(({ status }) => status === 'destroying')
  if (changes[end]?.source !== 'flyd') return undefined
  return [changes[end + 1]?.status, 'stopped'].find((status) => status !== undefined && states.has(status))
}

/** As many as are kept: a program that was restarted often has many exits. */
const eventsBeforeItsEnd = 100

async function findResultOfOld(
  ctx: LiveContext,
  id: string,
  request: WaitRequest,
  states: ReadonlySet<string>,
  state: string,
): Promise<{ state: string; result?: WaitResult }> {
  const { version } = request
  const known = ulidPattern.test(version) && (await listVersions(ctx.db, id)).some((one) => one.version === version)
  if (!known) throw badRequest(`the machine has no version ${JSON.stringify(version)}`)
  const reached = finalStates.find((one) => states.has(one))
  if (reached) return { state, result: { state: 'replaced', version, eventId: '' } }
  throw preconditionFailed(`failed_precondition: ${notReached(request, 'replaced')}`)
}
