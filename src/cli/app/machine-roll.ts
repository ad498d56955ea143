// New versions of machines, one after the other: the next one is touched when the one before is up and well.
import type { LogLine, MachineLease } from '../api-types.ts'
import { request, type Session } from '../client.ts'
import { Failure, Refusal } from '../failure.ts'
import { type Progress, watch } from '../progress.ts'
import {
  type ExitEvent,
  endedAs,
  exitText,
  getMachine,
  type Machine,
  type MachineConfig,
  machinePath,
  waitForState,
  waitUntilSettled,
} from './machine-find.ts'

export interface Roll {
  session: Session
  app: string
  progress: Progress
  /** How long each may take to be up and well. */
  waitSeconds: number
}

export interface Change {
  machine: Machine
  config: MachineConfig
}

/** Under leases, so that nobody else changes them meanwhile. What was not touched when one fails stays as it was. */
export async function rollOut(roll: Roll, changes: Change[], atOnce = 1): Promise<void> {
  try {
    for (let start = 0; start < changes.length; start += atOnce) {
      const now = changes.slice(start, start + atOnce)
      const results = await Promise.allSettled(
        now.map((change, index) => replace(roll, change, placeText(start + index + 1, changes.length))),
      )
      const failed = results.find((result) => result.status === 'rejected')
      if (failed) throw failed.reason
    }
  } finally {
    roll.progress.end()
  }
}

export function placeText(number: number, of: number): string {
  return of > 1 ? ` (${number} of ${of})` : ''
}

async function replace(roll: Roll, { machine, config }: Change, place: string): Promise<void> {
  const { session, app, progress } = roll
  progress.show(`Updating machine ${machine.id}${place}`)
  await underLease(session, machinePath(app, machine.id), async (path, nonce) => {
    const body = { config, current_version: machine.instance_id }
    await request<Machine>(session, 'POST', path, body, nonce)
    await explaining(roll, machine.id, async () => {
      const { state } = await waitUntilSettled(session, app, machine, roll.waitSeconds)
      if (isDown(machine) && state === 'stopped') return
      // One that had failed, or ended too often, is given another chance.
      if (machine.failure && state === 'stopped') await request(session, 'POST', `${path}/start`, {}, nonce)
      await waitUntilUp(roll, machine.id)
    })
  })
}

const leaseSeconds = 30

/** Short and renewed, so that nobody waits for long when this process dies. */
async function underLease(
  session: Session,
  path: string,
  run: (path: string, nonce: Record<string, string>) => Promise<void>,
): Promise<void> {
  const body = { ttl: leaseSeconds, description: 'berth' }
  const lease = await request<MachineLease>(session, 'POST', `${path}/lease`, body)
  const nonce = { 'fly-machine-lease-nonce': lease.data.nonce }
  const renewal = setInterval(
    () => request(session, 'POST', `${path}/lease`, body, nonce).catch(() => undefined),
    (leaseSeconds / 3) * 1000,
  )
  try {
    await run(path, nonce)
  } finally {
    clearInterval(renewal)
    await request(session, 'DELETE', `${path}/lease`, undefined, nonce).catch(() => undefined)
  }
}

/** Because somebody wanted it so, or its program was done. */
function isDown({ state, failure }: Machine): boolean {
  return ['stopped', 'suspended', 'created'].includes(state) && !failure
}

/** Started, and its checks pass; without checks its program stays up for a moment. */
export async function waitUntilUp(roll: Roll, id: string): Promise<void> {
  const machine = await waitForState(roll.session, roll.app, { id }, 'started', roll.waitSeconds)
  if (machine.checks?.length) await waitUntilWell(roll, id)
  else await waitWhetherStays(roll, machine)
}

async function waitUntilWell(roll: Roll, id: string): Promise<void> {
  const deadline = Date.now() + roll.waitSeconds * 1000
  await watch(
    roll.progress,
    () => getMachine(roll.session, roll.app, id),
    (seen) => {
      const failing = (seen.checks ?? []).filter(({ status }) => status !== 'passing')
      if (seen.state !== 'started') throw endedAs(seen, 'started')
      if (failing.length === 0) return undefined
      const names = failing.map(({ name }) => name).join(', ')
      if (Date.now() > deadline) {
        const said = failing.map(({ output }) => output).find(Boolean)
        throw new Failure(`machine ${id}: ${names} does not pass after ${roll.waitSeconds} s${said ? `: ${said}` : ''}`)
      }
      return `Machine ${id} waits for ${names}`
    },
  )
}

const staysMillis = 2000

async function waitWhetherStays({ session, app, progress }: Roll, started: Machine): Promise<void> {
  const deadline = Date.now() + staysMillis
  await watch(
    progress,
    () => getMachine(session, app, started.id),
    (seen) => {
      const exit = exitSinceStart(seen)
      if (exit) throw new Failure(`the program of machine ${seen.id} ${exitText(exit)} as soon as it was started`)
      if (seen.state !== 'started') throw endedAs(seen, 'started')
      return Date.now() > deadline ? undefined : `Machine ${seen.id} is started`
    },
  )
}

function exitSinceStart({ events = [] }: Machine): ExitEvent | undefined {
  const start = events.findIndex(({ type }) => ['launch', 'update', 'start'].includes(type))
  const since = start < 0 ? events : events.slice(0, start)
  return since.find(({ request }) => request?.exit_event)?.request?.exit_event
}

const lastLines = 10

/** What goes wrong is told with the last words of the machine, which mostly say more. */
export async function explaining<T>({ session, app }: Roll, id: string, run: () => Promise<T>): Promise<T> {
  try {
    return await run()
  } catch (error) {
    if (!(error instanceof Failure || error instanceof Refusal)) throw error
    const said = await lastWords(session, app, id)
    if (said.length === 0) throw error
    const details = [`The last lines of machine ${id}:`, ...said.map((line) => `  ${line}`)]
    throw new Failure(error.message, { cause: error, details })
  }
}

/** None when they cannot be had: the reason itself is what counts. */
async function lastWords(session: Session, app: string, id: string): Promise<string[]> {
  const { readEvents } = await import('../stream.ts')
  const path = `${machinePath(app, id)}/logs?lines=${lastLines}`
  const said: string[] = []
  try {
    for await (const { message } of readEvents<LogLine>(session, { method: 'GET', path })) said.push(message)
  } catch {
    return []
  }
  return said
}
