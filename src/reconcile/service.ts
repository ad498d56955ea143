import type { BoxSpec } from '../drivers/box.ts'
import type { Sandbox } from '../model/sandbox.ts'
import type { Service } from '../model/service.ts'
import type { ServiceProcess } from '../model/service-state.ts'
import { listServices, setReadyAt } from '../store/service.ts'
import type { World } from './step.ts'

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
  if (owner?.health && 'command' in owner.health.check) await noteReadiness(sandbox, owner, world)
}

/** For the edge, which holds requests back until then and cannot look by itself. */
async function noteReadiness(sandbox: Sandbox, service: Service, { db, services }: World): Promise<void> {
  const lookedAtMs = Date.now()
  const found = services.inspectService(sandbox.id, service)
  await setReadyAt(db, sandbox.id, service.name, found.is === 'up' && found.ready ? lookedAtMs : null)
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
