import type { BoxSpec } from '../../drivers/box/driver.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { Service } from '../../model/sandbox/service.ts'
import { type ServiceProcess, stateOf } from '../../model/sandbox/service-state.ts'
import { listServices, setFailure, setReadyAt } from '../../store/sandbox/service.ts'
import type { World } from '../step.ts'

/**
 * What is to run and what does differ only when a change was interrupted: the control plane died between writing down
 * what is wanted and doing it. A change that is being made at this moment ends in the same.
 */
export async function ensureServices(sandbox: Sandbox, box: BoxSpec, world: World): Promise<void> {
  const wanted = await listServices(world.db, sandbox.id)
  const extra = world.services
    .listDefined(sandbox.id)
    .filter((name) => !wanted.some((service) => service.name === name))
  for (const name of extra) await world.services.removeService(box, name)
  for (const service of wanted) await ensureService(sandbox, box, service, world)
  if (wanted.length + extra.length > 0) world.services.setOrder(box, wanted)
  const owner = wanted.find(({ httpPort }) => httpPort !== null)
  if (owner) await lookForEdge(sandbox.id, owner, world)
}

/** Requests come as fast as somebody likes, and what fails at once is not started as fast. */
const hurryMs = 1_000

/** The edge holds requests back until it is ready, has it looked at meanwhile, and cannot look by itself. */
async function lookForEdge(sandboxId: string, owner: Service, { db, services }: World): Promise<void> {
  const lookedAtMs = Date.now()
  const found = services.inspectService(sandboxId, owner)
  const { error = null } = stateOf(owner, found, true)
  await setFailure(db, sandboxId, owner.name, error)
  if (found.is === 'ending' && error !== null && lookedAtMs - found.sinceMs > hurryMs) {
    services.hurryService(sandboxId, owner.name)
  }
  if (owner.health && 'command' in owner.health.check)
    await setReadyAt(db, sandboxId, owner.name, found.is === 'up' && found.ready ? lookedAtMs : null)
}

/** Between the halves of a restart it is down as well, for an instant. */
const restartMs = 3_000

function isForgotten(found: ServiceProcess): boolean {
  return found.is === 'absent' || (found.is === 'down' && !found.wanted && Date.now() - found.sinceMs > restartMs)
}

async function ensureService(sandbox: Sandbox, box: BoxSpec, service: Service, { services }: World): Promise<void> {
  services.ensureDefinition(box, service, sandbox.environment)
  const found = services.inspectService(sandbox.id, service)
  if (service.wanted && isForgotten(found)) await services.startService(box, service.name)
  if (!service.wanted && found.is !== 'absent' && found.wanted)
    await services.stopService(box, service.name, { stay: true })
}
