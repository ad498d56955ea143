// Every change of the box of a sandbox, and of the processes of a service, is made in a turn, with the rows as they are then.
import { isDiskFull } from '../../model/disk-full.ts'
import { describeError, unavailable } from '../../model/errors.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import { diskFullProblem, type Service } from '../../model/sandbox/service.ts'
import type { Db } from '../db.ts'
import type { Turns } from '../turn.ts'
import { loadSandbox } from './sandbox.ts'
import { listServices, setServiceProblem } from './service.ts'

export interface TurnContext {
  db: Db
  turns: Turns
}

/** A sandbox whose box exists or may be made. */
export type PlacedSandbox = Sandbox & { slot: number }

/** For requests: longer than a restart takes, in which services have 10 s to end and the box 20 s to start. */
const patienceMs = 40_000

/** Runs the task in the turn of the box. Its sandbox is undefined if it is deleted. Returns undefined after `waitMs`. */
export function trySandboxTurn<T>(
  { db, turns }: TurnContext,
  id: string,
  waitMs: number,
  task: (sandbox: PlacedSandbox | undefined) => Promise<T>,
): Promise<{ value: T } | undefined> {
  return turns.take(`sandbox ${id}`, waitMs, async () => task(placed(await loadSandbox(db, id))))
}

/** Like `trySandboxTurn`, for requests: when others take too long, the caller is asked to try again. */
export async function inSandboxTurn<T>(
  ctx: TurnContext,
  id: string,
  task: (sandbox: PlacedSandbox | undefined) => Promise<T>,
): Promise<T> {
  const done = await trySandboxTurn(ctx, id, patienceMs, task)
  if (!done) throw unavailable('the sandbox is being changed; try again in a moment')
  return done.value
}

/** For requests: longer than a service has to end by default. */
const servicePatienceMs = 60_000

export interface ServiceTurn {
  sandbox: PlacedSandbox
  /** Undefined if it is deleted. */
  service: Service | undefined
}

/**
 * Runs the task in the turn of one service, unless its sandbox does not run, and records why it failed. The turns of the
 * services that it needs are not held, so that services whose dependencies change cannot wait for each other. Returns the
 * row that the task had.
 */
export async function inServiceTurn(
  { db, turns }: TurnContext,
  sandboxId: string,
  name: string,
  task: (found: ServiceTurn) => Promise<void>,
): Promise<Service | undefined> {
  const done = await turns.take(`service ${sandboxId}/${name}`, servicePatienceMs, async () => {
    const found = await loadServices(db, sandboxId)
    if (!found) return undefined
    const service = found.services.find((one) => one.name === name)
    try {
      await task({ sandbox: found.sandbox, service })
    } catch (error) {
      await setServiceProblem(db, sandboxId, name, problemOf(error))
      throw new Error(problemOf(error), { cause: error })
    }
    if (service && service.problem !== null) await setServiceProblem(db, sandboxId, name, null)
    return service
  })
  if (!done) throw unavailable('the service is being changed; try again in a moment')
  return done.value
}

/** Errors of files name paths of the host, which are of no use to a tenant. */
function problemOf(error: unknown): string {
  const text = describeError(error)
  if (isDiskFull(text)) return diskFullProblem
  return text.includes('/') ? 'its files could not be written' : text
}

/** Runs the task with all services, one task of a sandbox at a time, unless the sandbox does not run. */
export async function withAllServices(
  { db, turns }: TurnContext,
  sandboxId: string,
  task: (sandbox: PlacedSandbox, services: Service[]) => void,
): Promise<void> {
  await turns.take(`services ${sandboxId}`, servicePatienceMs, async () => {
    const found = await loadServices(db, sandboxId)
    if (found) task(found.sandbox, found.services)
  })
}

async function loadServices(db: Db, sandboxId: string) {
  const [loaded, services] = await Promise.all([loadSandbox(db, sandboxId), listServices(db, sandboxId)])
  const sandbox = placed(loaded)
  return sandbox?.state === 'running' ? { sandbox, services } : undefined
}

function placed(sandbox: Sandbox | undefined): PlacedSandbox | undefined {
  return sandbox?.slot == null ? undefined : (sandbox as PlacedSandbox)
}
