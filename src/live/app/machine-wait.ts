import { type MachineState, machineStates, settledStates } from '../../model/app/machine.ts'
import { BerthError, badRequest, preconditionFailed } from '../../model/errors.ts'
import { ulidPattern } from '../../model/ids.ts'
import { getVisibleMachine, listVersions, machineNotFound, readMachineState } from '../../store/app/machine.ts'
import { findEventAfter } from '../../store/app/machine-event.ts'
import type { LiveContext } from '../context.ts'

export interface WaitWish {
  states: string[]
  /** Of this version; empty for whichever it has. */
  version: string
  /** Only what came after this event counts. */
  fromEventId: string
  timeoutSeconds: number
  /** The client has gone. */
  gone?: AbortSignal
}

export interface WaitResult {
  state: string
  version: string
  eventId: string
}

const settled = 'settled'

/** Told of every change as it is committed, and looks again now and then in case one was not heard. */
export async function waitForMachine(ctx: LiveContext, app: string, id: string, wish: WaitWish): Promise<WaitResult> {
  const deadline = performance.now() + wish.timeoutSeconds * 1000
  let wake = () => {}
  const unsubscribe = ctx.machineFeed.subscribe((change) => {
    if (change === undefined || change.machineId === id) wake()
  })
  try {
    await getVisibleMachine(ctx.db, ctx.tokenHash, app, id)
    const states = readStates(wish.states)
    if (wish.fromEventId && !ulidPattern.test(wish.fromEventId))
      throw badRequest('from_event_id is not the id of an event')
    for (;;) {
      const changed = new Promise<void>((resolve) => {
        wake = resolve
      })
      const look = await lookAt(ctx, id, wish, states)
      if (look.result) return look.result
      const left = deadline - performance.now()
      if (left <= 0) {
        throw new BerthError('timeout', `deadline_exceeded: ${notReached(wish, look.state)}`)
      }
      await within(changed, Math.min(left, lookAgainMs))
    }
  } finally {
    unsubscribe()
  }
}

const lookAgainMs = 5_000

/** The words by which clients know that waiting for longer is of no use. */
function notReached({ states }: WaitWish, state: string): string {
  return `machine failed to reach desired state, ${states.join(',')}, currently ${state}`
}

export async function within(changed: Promise<void>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
  })
  await Promise.race([changed, late])
  clearTimeout(timer)
}

function readStates(words: string[]): ReadonlySet<string> {
  const states = new Set<string>()
  for (const word of words) {
    if (word === settled) for (const state of settledStates) states.add(state)
    else if (word in machineStates) states.add(word)
    else throw badRequest(`state must be of ${[...Object.keys(machineStates), settled].join(', ')}`)
  }
  return states
}

/** What became of a version that another has replaced. */
const overStates: readonly MachineState[] = ['stopped', 'destroyed']

async function lookAt(
  ctx: LiveContext,
  id: string,
  wish: WaitWish,
  states: ReadonlySet<string>,
): Promise<{ state: string; result?: WaitResult }> {
  const now = await readMachineState(ctx.db, id)
  if (!now) throw machineNotFound()
  const { state, instanceId } = now
  if (wish.version && wish.version !== instanceId) return lookAtOld(ctx, id, wish, states, state)
  const eventId = now.eventId ?? ''
  if (wish.fromEventId) {
    const event = await findEventAfter(ctx.db, id, wish.fromEventId, [...states])
    return event ? { state, result: { state: event.status, version: instanceId, eventId: event.id } } : { state }
  }
  if (states.has(state)) return { state, result: { state, version: instanceId, eventId } }
  if (state === 'destroyed') {
    const why = now.failure === null ? '' : `: ${now.failure}`
    throw preconditionFailed(`failed_precondition: ${notReached(wish, state)}${why}`)
  }
  return { state }
}

async function lookAtOld(
  ctx: LiveContext,
  id: string,
  wish: WaitWish,
  states: ReadonlySet<string>,
  state: string,
): Promise<{ state: string; result?: WaitResult }> {
  const { version } = wish
  const known = ulidPattern.test(version) && (await listVersions(ctx.db, id)).some((one) => one.version === version)
  if (!known) throw badRequest(`the machine has no version ${JSON.stringify(version)}`)
  const over = overStates.find((one) => states.has(one))
  if (over) return { state, result: { state: 'replaced', version, eventId: '' } }
  throw preconditionFailed(`failed_precondition: ${notReached(wish, 'replaced')}`)
}
