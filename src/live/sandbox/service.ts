import { conflict, notFound, unauthorized } from '../../model/errors.ts'
import { boxSpec } from '../../model/sandbox/box.ts'
import { sandboxNamePattern } from '../../model/sandbox/sandbox.ts'
import { diskFullProblem, type Service, serviceNamePattern, startOrder } from '../../model/sandbox/service.ts'
import { type ServiceState, stateOf } from '../../model/sandbox/service-state.ts'
import { readSignal } from '../../model/signal.ts'
import { findService, listServices } from '../../store/sandbox/service.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { getSandbox } from './sandbox.ts'

export interface ServiceDetails extends Service {
  state: ServiceState
}

/** Reads the files of the supervisor. The sandbox is not started. */
export async function getService(ctx: LiveContext, sandboxName: string, name: string): Promise<ServiceDetails> {
  // Invalid names are not sent to the database, which rejects NUL bytes.
  const found = await findService(
    ctx.db,
    ctx.tokenHash,
    sandboxNamePattern.test(sandboxName) ? sandboxName : '',
    serviceNamePattern.test(name) ? name : '',
  )
  if (!found) throw unauthorized('invalid token')
  if (!found.sandbox) throw notFound('sandbox not found')
  if (!found.service) throw serviceNotFound()
  const details = withState(ctx, found.sandbox, found.service)
  return isBlocked(details)
    ? explained(ctx, details, found.sandbox.id, await listServices(ctx.db, found.sandbox.id))
    : details
}

export async function listServicesOf(ctx: LiveContext, sandboxName: string): Promise<ServiceDetails[]> {
  const sandbox = await getSandbox(ctx, sandboxName, 'read')
  const services = await listServices(ctx.db, sandbox.id)
  const details = services.map((service) => withState(ctx, sandbox, service))
  return details.map((one) => (isBlocked(one) ? explained(ctx, one, sandbox.id, services) : one))
}

function withState(ctx: LiveContext, sandbox: { id: string; state: string }, service: Service): ServiceDetails {
  const state = stateOf(service, ctx.services.inspectService(sandbox.id, service), sandbox.state === 'running')
  return { ...service, state }
}

function isBlocked({ state }: ServiceDetails): boolean {
  return state.status === 'starting' && state.error === undefined
}

/** Says why a service is still starting, if that is known. */
function explained(ctx: LiveContext, details: ServiceDetails, sandboxId: string, services: Service[]): ServiceDetails {
  const error = findFailedNeed(ctx, details, sandboxId, services) ?? findDiskProblem(ctx, sandboxId)
  return error === undefined ? details : { ...details, state: { ...details.state, error } }
}

function findFailedNeed(ctx: LiveContext, { name }: ServiceDetails, sandboxId: string, services: Service[]) {
  for (const need of startOrder(name, services).filter((one) => one.name !== name)) {
    const { status, error } = stateOf(need, ctx.services.inspectService(sandboxId, need), true)
    if (status === 'failed') return `it needs ${need.name}, which has failed: ${error}`
  }
  return undefined
}

function findDiskProblem(ctx: LiveContext, sandboxId: string): string | undefined {
  return ctx.services.isDiskFull(sandboxId) ? diskFullProblem : undefined
}

export async function signalService(
  ctx: LiveContext,
  sandboxName: string,
  { name, signal }: { name: string; signal: string | number },
): Promise<void> {
  const sandbox = await getSandbox(ctx, sandboxName, 'write')
  const number = readSignal(signal)
  const services = await listServices(ctx.db, sandbox.id)
  if (!services.some((service) => service.name === name)) throw serviceNotFound()
  const sent = await withDeadline(ctx.services.signalService(boxSpec(sandbox), name, number), 'the sandbox')
  if (!sent) throw conflict(`service ${name} is not running`)
}

export function serviceNotFound() {
  return notFound('service not found')
}
