import { setTimeout as sleep } from 'node:timers/promises'
import { boxSpec } from '../../model/sandbox/box.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { Service } from '../../model/sandbox/service.ts'
import { stateOf } from '../../model/sandbox/service-state.ts'
import { listServices, setFailure, setReadyAt } from '../../store/sandbox/service.ts'
import { inServiceTurn, withAllServices } from '../../store/sandbox/turn.ts'
import type { World } from '../step.ts'

/** A service may take long to end; it continues after the step. */
const patienceMs = 2_000

/**
 * Makes the services of a box match their rows: what a request could not complete, because the control plane died or the
 * disk was full, and what somebody changed in the box. Returns why they do not match yet, if they do not.
 */
export async function ensureServices(sandbox: Sandbox, world: World): Promise<string | undefined> {
  const services = await listServices(world.db, sandbox.id)
  const changes = listUnsettled(sandbox, services, world).map((name) => ensureService(sandbox.id, name, world))
  const results = await settleWithin(changes, patienceMs)
  // Also without changes: a control plane that dies between a change and this leaves another order.
  if (services.length + changes.length > 0)
    await withAllServices(world, sandbox.id, (now, all) => world.services.setOrder(boxSpec(now), all))
  const owner = services.find(({ httpPort }) => httpPort !== null)
  if (owner) await reportToEdge(sandbox.id, owner, world)
  return results
}

/** Only these need a turn, which is a query or two each. */
function listUnsettled(sandbox: Sandbox, services: Service[], world: World): string[] {
  const box = boxSpec(sandbox)
  const known = new Set(services.map(({ name }) => name))
  return [
    ...world.services.listDefined(sandbox.id).filter((name) => !known.has(name)),
    ...services
      .filter((service) => !world.services.isSettled(box, service, sandbox.environment))
      .map(({ name }) => name),
  ]
}

function ensureService(sandboxId: string, name: string, world: World): Promise<unknown> {
  return inServiceTurn(world, sandboxId, name, ({ sandbox, service }) =>
    world.services.ensureService(boxSpec(sandbox), { name, service, environment: sandbox.environment }),
  )
}

async function settleWithin(changes: Promise<unknown>[], waitMs: number): Promise<string | undefined> {
  if (changes.length === 0) return undefined
  const failures = Promise.allSettled(changes).then((results) =>
    results.flatMap((result) => (result.status === 'rejected' ? [(result.reason as Error).message] : [])),
  )
  const done = await Promise.race([failures, sleep(waitMs, undefined, { ref: false })])
  return done ? done[0] : 'its services are being changed'
}

/** A service that keeps failing is not restarted more often than this, however many requests arrive. */
const minRestartMs = 1_000

/** Stores the state of the service behind the URL. The edge holds requests until it is ready and cannot inspect it. */
async function reportToEdge(sandboxId: string, owner: Service, { db, services }: World): Promise<void> {
  const inspectedAtMs = Date.now()
  const found = services.inspectService(sandboxId, owner)
  const { error = null } = stateOf(owner, found, true)
  await setFailure(db, sandboxId, owner.name, error)
  if (found.is === 'ending' && error !== null && inspectedAtMs - found.sinceMs > minRestartMs) {
    services.hurryService(sandboxId, owner.name)
  }
  if (owner.health && 'command' in owner.health.check)
    await setReadyAt(db, sandboxId, owner.name, found.is === 'up' && found.ready ? inspectedAtMs : null)
}
