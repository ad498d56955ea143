import { badRequest } from '../model/errors.ts'
import { machineIdPattern } from '../model/machine.ts'
import { readGuest } from '../model/machine-guest.ts'
import { listOrgMachines, type MachineFilter, type OrgMachine } from '../store/machine.ts'
import { type Context, getCaller } from './context.ts'
import { chooseMachineRegion, withoutHost } from './machine.ts'
import { getOrg } from './org.ts'

export interface OrgMachinePage {
  machines: OrgMachine[]
  nextCursor: string | undefined
}

const mostMachines = 1000

/** From what changed first, so that whoever follows along asks for what is newer than the last he saw. */
export async function listMachinesOfOrg(
  ctx: Context,
  slug: string,
  filter: MachineFilter,
  page: { updatedAfter?: string | undefined; cursor?: string | undefined; limit?: number | undefined },
): Promise<OrgMachinePage> {
  const org = await getOrg(ctx, await getCaller(ctx), slug)
  const limit = page.limit ?? mostMachines
  const after = page.cursor ? readCursor(page.cursor) : page.updatedAfter ? readTime(page.updatedAfter) : null
  const machines = await listOrgMachines(ctx.db, org.id, filter, { after, limit: limit + 1 })
  const shown = machines.slice(0, limit)
  const last = shown.at(-1)
  const nextCursor =
    machines.length > limit ? Buffer.from(`${last!.updatedText} ${last!.id}`).toString('base64url') : undefined
  return { machines: shown, nextCursor }
}

const cursorForm = /^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?\+00) ([0-9a-f]{14})$/

function readCursor(cursor: string): { at: string; id: string } {
  const [, at, id] = cursorForm.exec(Buffer.from(cursor, 'base64url').toString()) ?? []
  if (!at || !id || !machineIdPattern.test(id)) throw badRequest('cursor is not one that a list answered with')
  return { at, id }
}

function readTime(text: string): { at: string; id: string } {
  const time = new Date(text)
  if (Number.isNaN(time.getTime())) throw badRequest('updated_after must be a time such as 2026-01-31T12:00:00Z')
  return { at: time.toISOString(), id: '' }
}

export interface PlacementWish {
  org_slug: string
  region?: string
  count?: number
  compute?: { cpu_kind?: 'shared' | 'performance'; cpus?: number; memory_mb?: number }
}

/** Everything is in one place; it says whether there is room. */
export async function placeMachines(ctx: Context, wish: PlacementWish): Promise<{ region: string; count: number }[]> {
  await getOrg(ctx, await getCaller(ctx), wish.org_slug)
  const region = chooseMachineRegion(ctx.settings, wish.region)
  const guest = readGuest(wish.compute, undefined)
  if (guest.memory_mb > ctx.settings.memoryMb) throw withoutHost()
  return [{ region, count: wish.count || Math.floor(ctx.settings.memoryMb / guest.memory_mb) }]
}
