import { machineIdPattern } from '../../model/app/machine.ts'
import { readGuest } from '../../model/app/machine-guest.ts'
import { listOrgMachines, type MachineFilter } from '../../store/app/machine.ts'
import { getOrg } from '../account/org.ts'
import { type Context, getCaller } from '../context.ts'
import { type ChangePage, pageOfChanges } from '../cursor.ts'
import { chooseMachineRegion, withoutHost } from './machine.ts'

export async function listMachinesOfOrg(ctx: Context, slug: string, filter: MachineFilter, page: ChangePage) {
  const org = await getOrg(ctx, await getCaller(ctx), slug)
  return pageOfChanges(page, machineIdPattern, (place) => listOrgMachines(ctx.db, org.id, filter, place))
}

export interface PlacementRequest {
  org_slug: string
  region?: string
  count?: number
  compute?: { cpu_kind?: 'shared' | 'performance'; cpus?: number; memory_mb?: number }
}

/** All regions are this host, so placement only checks the free slots. */
export async function placeMachines(
  ctx: Context,
  request: PlacementRequest,
): Promise<{ region: string; count: number }[]> {
  await getOrg(ctx, await getCaller(ctx), request.org_slug)
  const region = chooseMachineRegion(ctx.settings, request.region)
  const guest = readGuest(request.compute, undefined)
  if (guest.memory_mb > ctx.settings.memoryMb) throw withoutHost()
  return [{ region, count: request.count || Math.floor(ctx.settings.memoryMb / guest.memory_mb) }]
}
