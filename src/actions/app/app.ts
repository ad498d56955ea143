import { action, wholeApp } from '../../model/account/access.ts'
import { requireCaller, requireWriter } from '../../model/account/caller.ts'
import {
  type AppSummary,
  appNamePattern,
  appStates,
  type CreateApp,
  type CreatedAppRow,
  defaultNetwork,
  networkPattern,
  runningMachineStates,
} from '../../model/app/app.ts'
import { machineIdPattern } from '../../model/app/machine.ts'
import { appRoleReason } from '../../model/app/unsupported.ts'
import { volumeIdPattern } from '../../model/app/volume.ts'
import { invalid } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { revokeAppTokens } from '../../store/account/token.ts'
import { findApp, findAppNameOf, insertApp, listApps, runningMachines } from '../../store/app/app.ts'
import { machineNotFound } from '../../store/app/machine.ts'
import { appNotFound, getVisibleApp, getWritableApp } from '../../store/app/visible.ts'
import { volumeNotFound } from '../../store/app/volume.ts'
import { lockState, transition } from '../../store/transition.ts'
import { isPermitted } from '../account/access.ts'
import { organizationNotFound, slugOrNotFound } from '../account/org.ts'
import { type Context, checked, getCaller } from '../context.ts'
import { readCursor, writeCursor } from '../cursor.ts'

export async function createApp(ctx: Context, input: CreateApp): Promise<CreatedAppRow> {
  const app = await checked(ctx, () => {
    if (input.app_role_id) throw invalid(appRoleReason(input.app_role_id))
    return {
      id: newId(),
      name: checkName(input.app_name ?? input.name),
      orgSlug: slugOrNotFound(required('org_slug', input.org_slug)),
      network: checkNetwork(ctx, input.network || defaultNetwork),
      enableSubdomains: input.enable_subdomains ?? false,
    }
  })
  const made = await insertApp(ctx.db, ctx.tokenHash, app)
  requireWriter(requireCaller(made?.caller))
  if (!made?.orgFound) throw organizationNotFound()
  if (!made.app) throw invalid('Validation failed: Name has already been taken', { status: 'name_taken' })
  return made.app
}

export async function getApp(ctx: Context, name: string): Promise<AppSummary> {
  return (await getVisibleApp(ctx.db, ctx.tokenHash, name)).app
}

/** Throws unless the caller may change the app. */
export async function checkWritableApp(ctx: Context, name: string): Promise<void> {
  await getWritableApp(ctx.db, ctx.tokenHash, name)
}

/** Names are global, so apps of other organizations count. */
export async function isNameFree(ctx: Context, name: string): Promise<boolean> {
  if (!appNamePattern.test(name)) return false
  const found = await findApp(ctx.db, ctx.tokenHash, name)
  requireCaller(found?.caller)
  return !found?.app
}

/** Finds the app of a machine or volume that the caller knows only by its id. Access to the app is yet to be checked. */
export async function getAppNameOf(ctx: Context, kind: 'machine' | 'volume', id: string): Promise<string> {
  const caller = await getCaller(ctx)
  const pattern = kind === 'machine' ? machineIdPattern : volumeIdPattern
  const name = pattern.test(id) ? await findAppNameOf(ctx.db, id, caller) : undefined
  if (name === undefined) throw kind === 'machine' ? machineNotFound() : volumeNotFound()
  return name
}

export interface AppQuery {
  org_slug: string
  app_role?: string
  limit?: number
  cursor?: string
}

export async function listAppsOf(ctx: Context, query: AppQuery) {
  const { orgSlug, after } = await checked(ctx, () => ({
    orgSlug: slugOrNotFound(required('org_slug', query.org_slug)),
    after: query.cursor === undefined ? '' : readCursor('cursor', appNamePattern, query.cursor),
  }))
  const limit = query.app_role ? 0 : (query.limit ?? null)
  // One row more than requested shows whether there is another page.
  const list = await listApps(ctx.db, ctx.tokenHash, orgSlug, after, limit === null ? null : limit + 1)
  requireCaller(list?.caller)
  if (!list?.orgFound) throw organizationNotFound()
  // Berth has no app roles, so no app matches.
  if (query.app_role) return { total: 0, apps: [] }
  const more = limit !== null && list.apps.length > limit
  const page = more ? list.apps.slice(0, limit) : list.apps
  const apps = page.filter((app) =>
    isPermitted(ctx, wholeApp({ org: app.orgNumericId, app: app.numericId }, action.read)),
  )
  const total = ctx.attenuation ? apps.length : list.total
  return { total, apps, nextCursor: more ? writeCursor(page.at(-1)!.name) : undefined }
}

/** The app is no longer visible when this returns; its machines and volumes are removed in the background. */
export async function deleteApp(ctx: Context, name: string, force: boolean): Promise<void> {
  const app = await getWritableApp(ctx.db, ctx.tokenHash, name)
  await ctx.db.transaction(async (tx) => {
    if ((await lockState(tx, 'app', app.id)) !== 'active') throw appNotFound()
    const running = force ? [] : await runningMachines(tx, app.id, runningMachineStates)
    if (running.length > 0) throw stillRunning(running)
    await transition(tx, 'app', appStates, app.id, 'delete')
    await revokeAppTokens(tx, app.id)
  })
}

function stillRunning(machines: string[]) {
  const shown = machines.slice(0, 10).join(', ') + (machines.length > 10 ? ` and ${machines.length - 10} more` : '')
  return invalid(`machines are still running: ${shown}; stop them first or delete with force=true`)
}

function required(field: string, value: string | undefined): string {
  if (value === undefined || value === '') throw invalid(`${field} is required`)
  return value
}

function checkName(name: string | undefined): string {
  if (!appNamePattern.test(required('app_name', name))) {
    throw invalid('Validation failed: Name under 63 chars using numbers, lowercase letters and dashes')
  }
  return name!
}

/** Rejects a custom network on a host without private networks, because the app would not be isolated. */
function checkNetwork({ settings }: Context, network: string): string {
  if (!networkPattern.test(network)) {
    throw invalid('network must start with a letter and have at most 63 letters, digits and dashes')
  }
  if (network === defaultNetwork || settings.privateNetworkGap === undefined) return network
  throw invalid(`network: there are no private networks on this platform: ${settings.privateNetworkGap}`)
}
