import type { BoxSpec } from '../../model/sandbox/box.ts'
import type { Sandbox } from '../../model/sandbox/sandbox.ts'
import type { Service } from '../../model/sandbox/service.ts'
import { type ServiceProcess, stateOf } from '../../model/sandbox/service-state.ts'
import { listServices, setFailure, setReadyAt } from '../../store/sandbox/service.ts'
import type { World } from '../step.ts'

/**
 * Makes the services of a box match their rows. They only differ when the control plane died between storing a change and
 * making it, or while a change is being made, which has the same result.
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
  if (owner) await reportToEdge(sandbox.id, owner, world)
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

/** A service is also down between the stop and the start of a restart. */
const restartMs = 3_000

function mustBeStarted(found: ServiceProcess): boolean {
  return found.is === 'absent' || (found.is === 'down' && !found.wanted && Date.now() - found.sinceMs > restartMs)
}

async function ensureService(sandbox: Sandbox, box: BoxSpec, service: Service, { services }: World): Promise<void> {
  services.ensureDefinition(box, service, sandbox.environment)
  const found = services.inspectService(sandbox.id, service)
  if (service.wanted && mustBeStarted(found)) await services.startService(box, service.name)
  if (!service.wanted && found.is !== 'absent' && found.wanted)
    await services.stopService(box, service.name, { stay: true })
}
