// Changes of services. All checks come first; then the row says what is wanted, and a task makes it so, which continues
// when the caller has gone. The stream of events only watches the task.
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
import type { Tx } from '../../store/db.ts'
import { deleteServiceRow, listServices, putService, setReadyAt, setWanted } from '../../store/sandbox/service.ts'
import { lockState } from '../../store/transition.ts'
import type { LiveContext } from '../context.ts'
import { getSandbox, openSandbox, wake } from './sandbox.ts'
import { serviceNotFound } from './service.ts'
import { streamLog, streamStart, streamStop } from './service-stream.ts'
import { type Change, inTurn, type ServiceEventStream } from './service-task.ts'

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
    if (before?.wanted && found?.is === 'up' && found.wanted && isSameDefinition(before, definition)) return undefined
    checkDefinition(definition, known)
    await putService(tx, sandbox.id, definition)
    return wantWithNeeds(tx, sandbox.id, name)
  })
  if (!services) return undefined
  const change = changeOf(ctx, sandbox, services, name)
  return streamStart(change, { durationMs, stopFirst: wasUp, tellsStop: false }, startWithNeeds)
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
    return wantWithNeeds(tx, sandbox.id, name)
  })
  const change = changeOf(ctx, sandbox, services, name)
  return streamStart(change, { durationMs, stopFirst: false, tellsStop: false }, startWithNeeds)
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
    await setReadyAt(tx, sandbox.id, name, null)
    return wantWithNeeds(tx, sandbox.id, name)
  })
  const change = changeOf(ctx, sandbox, services, name)
  const isUp = ctx.services.inspectService(sandbox.id, change.service).is === 'up'
  return streamStart(change, { durationMs, stopFirst: isUp, tellsStop: true }, startWithNeeds)
}

/** The service stays stopped until it is started by a request, also when the sandbox restarts. */
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
    const dependent = known.find((one) => one.needs.includes(name) && isUp(ctx, sandbox, one))
    if (dependent) throw conflict(`service ${dependent.name} is running and needs ${name}`)
    await setWanted(tx, sandbox.id, [name], false)
    return known
  })
  return streamStop(changeOf(ctx, sandbox, services, name), timeoutMs)
}

/** The caller waits no longer than this; the removal continues. */
const maxDeleteMs = 12_000

export async function deleteService(ctx: LiveContext, sandboxName: string, name: string): Promise<void> {
  const sandbox = await getSandbox(ctx, sandboxName, 'write')
  const rest = await ctx.db.transaction(async (tx) => {
    const known = await lockServices(tx, sandbox.id)
    getOf(known, name)
    const dependent = known.find((service) => service.needs.includes(name))
    if (dependent) throw conflict(`service ${dependent.name} needs ${name}`)
    await deleteServiceRow(tx, sandbox.id, name)
    return known.filter((service) => service.name !== name)
  })
  const box = boxSpec(sandbox)
  const removal = inTurn(sandbox.id, name, async () => {
    await ctx.services.removeService(box, name)
    ctx.services.setOrder(box, rest)
  })
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

/** Marks the service and everything it needs as wanted, also what a caller stopped earlier. */
async function wantWithNeeds(tx: Tx, sandboxId: string, name: string): Promise<Service[]> {
  const names = startOrder(name, await listServices(tx, sandboxId)).map((service) => service.name)
  await setWanted(tx, sandboxId, names, true)
  return listServices(tx, sandboxId)
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
    environment: sandbox.environment,
    services,
    service: getOf(services, name),
  }
}

function isUp(ctx: LiveContext, sandbox: SandboxDetails, service: Service): boolean {
  return ctx.services.inspectService(sandbox.id, service).is === 'up'
}

/** Starts what the service needs first. Its run script waits until all of that is ready. */
async function startWithNeeds(change: Change): Promise<void> {
  const { driver, box, services, service } = change
  driver.setOrder(box, services)
  for (const need of startOrder(service.name, services).filter((one) => one !== service)) {
    await inTurn(box.id, need.name, async () => {
      const found = driver.inspectService(box.id, need)
      if (found.is !== 'up' || !found.wanted) await startOne(change, need)
    })
  }
  await startOne(change, service)
}

async function startOne({ driver, box, environment }: Change, service: Service): Promise<void> {
  driver.ensureDefinition(box, { ...service, wanted: true }, environment)
  await driver.startService(box, service.name)
}
