// Changes of services. All checks come first; then the rows say what is wanted, and a task makes it so, which continues
// when the caller has gone. If it fails or this process dies, the background loop completes it. The stream of events only
// watches the task.
import { setTimeout as sleep } from 'node:timers/promises'
import { conflict, notFound } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'
import {
  checkDefinition,
  isSameDefinition,
  type PutService,
  readDefinition,
  type Service,
  startOrder,
} from '../../model/sandbox/service.ts'
import type { ServiceProcess } from '../../model/sandbox/service-state.ts'
import type { Tx } from '../../store/db.ts'
import {
  deleteServiceRow,
  listServices,
  putService,
  renewService,
  setUnwanted,
  setWanted,
} from '../../store/sandbox/service.ts'
import { lockState } from '../../store/transition.ts'
import { enqueueLater } from '../../store/work.ts'
import type { LiveContext } from '../context.ts'
import { getSandbox, openSandbox, wake } from './sandbox.ts'
import { serviceNotFound } from './service.ts'
import { streamLog, streamStart, streamStop } from './service-stream.ts'
import { type Change, type ServiceEventStream, settleService } from './service-task.ts'

/** Returns undefined when the service runs with the same definition already. */
export async function changeService(
  ctx: LiveContext,
  sandboxName: string,
  name: string,
  body: PutService,
  durationMs: number,
): Promise<ServiceEventStream | undefined> {
  const asked = await getSandbox(ctx, sandboxName, 'write')
  const definition = readDefinition(name, body)
  const sandbox = await wake(ctx, asked)
  let wasUp = false
  const services = await ctx.db.transaction(async (tx) => {
    const known = await lockServices(tx, sandbox.id)
    const before = known.find((service) => service.name === name)
    const found = before && ctx.services.inspectService(sandbox.id, before)
    wasUp = found?.is === 'up'
    const isSame = before !== undefined && isSameDefinition(before, definition)
    if (isSame && before.wanted && runs(found) && ctx.services.isCurrent(sandbox.id, before)) return undefined
    checkDefinition(definition, known)
    await putService(tx, sandbox.id, definition, { isNew: !isSame })
    return wantWithNeeds(ctx, tx, sandbox.id, name)
  })
  if (!services) return undefined
  const change = changeOf(ctx, sandbox, services, name)
  return streamStart(change, { durationMs, stopFirst: wasUp, tellsStop: false }, startWithNeeds(ctx, change))
}

function runs(found: ServiceProcess | undefined): boolean {
  return found?.is === 'up' && found.wanted
}

export async function startService(
  ctx: LiveContext,
  sandboxName: string,
  name: string,
  durationMs: number,
): Promise<ServiceEventStream> {
  const sandbox = await openSandbox(ctx, sandboxName, 'write')
  const services = await ctx.db.transaction(async (tx) => {
    const service = getOf(await lockServices(tx, sandbox.id), name)
    const found = ctx.services.inspectService(sandbox.id, service)
    if (service.wanted && found.is === 'up' && found.wanted && !(found.ready && found.begunAtMs))
      throw conflict(`service ${name} is already starting`)
    return wantWithNeeds(ctx, tx, sandbox.id, name)
  })
  const change = changeOf(ctx, sandbox, services, name)
  return streamStart(change, { durationMs, stopFirst: false, tellsStop: false }, startWithNeeds(ctx, change))
}

export async function restartService(
  ctx: LiveContext,
  sandboxName: string,
  name: string,
  durationMs: number,
): Promise<ServiceEventStream> {
  const sandbox = await openSandbox(ctx, sandboxName, 'write')
  const services = await ctx.db.transaction(async (tx) => {
    getOf(await lockServices(tx, sandbox.id), name)
    await renewService(tx, sandbox.id, name)
    return wantWithNeeds(ctx, tx, sandbox.id, name)
  })
  const change = changeOf(ctx, sandbox, services, name)
  const stopFirst = isUp(ctx, sandbox, change.service)
  return streamStart(change, { durationMs, stopFirst, tellsStop: true }, startWithNeeds(ctx, change))
}

/** Three weeks. */
const maxStopMs = 2 ** 31 - 1

/**
 * The service stays stopped until it is started by a request, also when the sandbox restarts. It must not be needed by one
 * that is not stopped, even if that one does not run at the moment, so what a service needs is never stopped.
 */
export async function stopService(
  ctx: LiveContext,
  sandboxName: string,
  name: string,
  timeoutMs: number,
): Promise<ServiceEventStream> {
  const sandbox = await getSandbox(ctx, sandboxName, 'write')
  const services = await ctx.db.transaction(async (tx) => {
    const known = await lockServices(tx, sandbox.id)
    const service = getOf(known, name)
    const found = ctx.services.inspectService(sandbox.id, service)
    if (!service.wanted && (found.is === 'down' || found.is === 'absent'))
      throw conflict(`service ${name} is not running`)
    const dependent = known.find((one) => one.needs.includes(name) && one.wanted)
    if (dependent) {
      const doing = isUp(ctx, sandbox, dependent) ? 'is running and needs' : 'has not been stopped and needs'
      throw conflict(`service ${dependent.name} ${doing} ${name}`)
    }
    await setUnwanted(tx, sandbox.id, name, Math.min(Math.ceil(timeoutMs), maxStopMs))
    await enqueueLater(tx, 'sandbox', sandbox.id, completionSeconds)
    return known
  })
  return streamStop(changeOf(ctx, sandbox, services, name), () => stopNow(ctx, sandbox.id, name))
}

async function stopNow(ctx: LiveContext, sandboxId: string, name: string): Promise<void> {
  const settled = await settleService(ctx, sandboxId, name)
  if (settled?.wanted) throw new Error(`service ${name} was started again by another request`)
}

/** The caller waits no longer than this; the removal continues. */
const maxDeleteMs = 12_000

export async function deleteService(ctx: LiveContext, sandboxName: string, name: string): Promise<void> {
  const sandbox = await getSandbox(ctx, sandboxName, 'write')
  await ctx.db.transaction(async (tx) => {
    const known = await lockServices(tx, sandbox.id)
    getOf(known, name)
    const dependent = known.find((service) => service.needs.includes(name))
    if (dependent) throw conflict(`service ${dependent.name} needs ${name}`)
    await deleteServiceRow(tx, sandbox.id, name)
    await enqueueLater(tx, 'sandbox', sandbox.id, completionSeconds)
  })
  const removal = settleService(ctx, sandbox.id, name)
  // If the removal fails, the background loop repeats it.
  removal.catch(() => undefined)
  await Promise.race([removal, sleep(maxDeleteMs, undefined, { ref: false })])
}

/** Streams the output that is kept, and then new output for some time. */
export async function streamServiceLog(
  ctx: LiveContext,
  sandboxName: string,
  name: string,
  lines: number | undefined,
  followMs: number,
): Promise<ServiceEventStream> {
  const sandbox = await getSandbox(ctx, sandboxName, 'read')
  const services = await listServices(ctx.db, sandbox.id)
  return streamLog(changeOf(ctx, sandbox, services, name), lines, followMs)
}

/** Locks the services of a sandbox, because whether a change is valid depends on all of them. */
async function lockServices(tx: Tx, sandboxId: string): Promise<Service[]> {
  const state = await lockState(tx, 'sandbox', sandboxId)
  if (state === undefined || state === 'deleting' || state === 'deleted') throw notFound('sandbox not found')
  return listServices(tx, sandboxId)
}

/** A request makes its changes itself; this is for those that it leaves unmade. */
const completionSeconds = 5

/**
 * Marks the service and everything it needs as wanted, also what a caller stopped earlier. What waits for its next start
 * after a failure is started at once.
 */
async function wantWithNeeds(ctx: LiveContext, tx: Tx, sandboxId: string, name: string): Promise<Service[]> {
  const wanted = startOrder(name, await listServices(tx, sandboxId))
  const waiting = wanted.filter((service) => service.wanted && isWaiting(ctx, sandboxId, service))
  for (const service of waiting) await renewService(tx, sandboxId, service.name)
  const names = wanted.map((service) => service.name)
  await setWanted(tx, sandboxId, names)
  await enqueueLater(tx, 'sandbox', sandboxId, completionSeconds)
  return listServices(tx, sandboxId)
}

function isWaiting(ctx: LiveContext, sandboxId: string, service: Service): boolean {
  const found = ctx.services.inspectService(sandboxId, service)
  return found.is === 'ending' && found.wanted
}

function getOf(services: Service[], name: string): Service {
  const service = services.find((one) => one.name === name)
  if (!service) throw serviceNotFound()
  return service
}

function changeOf(ctx: LiveContext, sandbox: SandboxDetails, services: Service[], name: string): Change {
  return {
    driver: ctx.services,
    box: boxSpec(sandbox),
    services,
    service: getOf(services, name),
  }
}

function isUp(ctx: LiveContext, sandbox: SandboxDetails, service: Service): boolean {
  return ctx.services.inspectService(sandbox.id, service).is === 'up'
}

/** Starts what the service needs first. Its run script waits until all of that is ready. */
function startWithNeeds(ctx: LiveContext, { box, services, service }: Change) {
  return async (onDown: () => void): Promise<void> => {
    for (const need of startOrder(service.name, services).filter((one) => one !== service))
      await settleService(ctx, box.id, need.name)
    const settled = await settleService(ctx, box.id, service.name, onDown)
    if (settled?.wanted) return
    throw new Error(`service ${service.name} was ${settled ? 'stopped' : 'deleted'} by another request`)
  }
}
