import { isOperator, requireSandboxCaller, requireWriter } from '../../model/account/caller.ts'
import { chooseRegion } from '../../model/account/region.ts'
import { hashToken, insideToken } from '../../model/account/token.ts'
import { BerthError, badRequest, conflict, forbidden, notFound } from '../../model/errors.ts'
import { newId } from '../../model/ids.ts'
import { formatImageReference, type ImageReference, parseImageReference } from '../../model/image.ts'
import {
  type CreateSandbox,
  defaultSize,
  maxEnvironmentBytes,
  maxSandboxes,
  type SandboxConfig,
  type SandboxDetails,
  type SandboxImage,
  sandboxNamePattern,
  sandboxStates,
  type UpdateSandbox,
  variablePattern,
} from '../../model/sandbox/sandbox.ts'
import { removeInsideToken } from '../../store/account/token.ts'
import type { Tx } from '../../store/db.ts'
import {
  findOrgSandboxes,
  getVisibleSandbox,
  listSandboxes,
  type SandboxList,
  type VisibleSandbox,
} from '../../store/sandbox/sandbox.ts'
import { type SandboxChanges, updateSandbox } from '../../store/sandbox/sandbox-change.ts'
import { insertSandbox } from '../../store/sandbox/sandbox-create.ts'
import { lockState, transition } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import { organizationNotFound, slugOrNotFound } from '../account/org.ts'
import { type Context, checked, getCaller } from '../context.ts'
import { readCursor, writeCursor } from '../cursor.ts'

export async function createSandbox(ctx: Context, input: CreateSandbox): Promise<SandboxDetails> {
  const { config = {}, url_settings = {} } = input
  const orgSlug = input.org_slug ?? input.organization ?? null
  const id = newId()
  const image = await imageOf(ctx, input.image ?? config.image)
  const sandbox = await checked(ctx, () => ({
    id,
    insideHash: hashToken(insideToken(ctx.encryptionKey, id)),
    name: input.name,
    orgSlug,
    urlAuth: url_settings.auth ?? 'sprite',
    privateAccess: url_settings.private_access ?? 'org_users',
    labels: checkLabels(input.labels ?? []),
    environment: checkEnvironment(input.environment ?? {}),
    ...defaultSize,
    region: regionOf(ctx, undefined),
    ...sizeOf(ctx, config),
    image,
  }))
  const made = await insertSandbox(ctx.db, ctx.tokenHash, sandbox)
  const caller = requireSandboxCaller(made?.caller)
  requireWriter(caller)
  if (caller.kind === 'sandbox') throw forbidden('this token is for one sandbox and cannot create another')
  if (!made!.orgFound) throw organizationNotFound()
  if (made!.nameTaken) throw conflict('the name has already been taken')
  if (!made!.sandbox) throw noRoom()
  return made!.sandbox
}

export interface SandboxPageRead extends SandboxList {
  nextToken: string | null
}

const pageLimit = 50

export async function listVisibleSandboxes(
  ctx: Context,
  query: { prefix?: string; max_results?: number; continuation_token?: string; org_slug?: string },
): Promise<SandboxPageRead> {
  const limit = Math.min(pageLimit, Math.max(1, query.max_results ?? pageLimit))
  const filter = await checked(ctx, () => ({
    orgSlug: query.org_slug === undefined ? null : slugOrNotFound(query.org_slug),
    prefix: query.prefix ?? '',
    after: query.continuation_token
      ? readCursor('continuation_token', sandboxNamePattern, query.continuation_token)
      : '',
    limit: limit + 1, // one row more than requested shows whether there is another page
  }))
  const list = await listSandboxes(ctx.db, ctx.tokenHash, filter)
  requireSandboxCaller(list?.caller)
  if (!list!.orgFound) throw organizationNotFound()
  const sandboxes = list!.sandboxes.slice(0, limit)
  const more = list!.sandboxes.length > limit
  return { ...list!, sandboxes, nextToken: more ? writeCursor(sandboxes.at(-1)!.name) : null }
}

/** Changes only the given settings, also of a running sandbox. */
export async function changeSandbox(ctx: Context, name: string, input: UpdateSandbox): Promise<SandboxDetails> {
  const changes = await checked(ctx, (): SandboxChanges => {
    const { url_settings = {}, labels, clear_labels, environment, config = {} } = input
    return {
      ...(url_settings.auth && { urlAuth: url_settings.auth }),
      ...(url_settings.private_access && { privateAccess: url_settings.private_access }),
      ...(clear_labels && { labels: [] }),
      ...(labels && { labels: checkLabels(labels) }),
      ...(environment && { environment: checkEnvironment(environment) }),
      ...sizeOf(ctx, config),
    }
  })
  await changeVisible(ctx, name, changes)
  return (await getVisible(ctx, name)).sandbox
}

/** Changes the stored settings of a sandbox that the caller may change. */
export async function changeVisible(ctx: Context, name: string, changes: SandboxChanges): Promise<void> {
  const { sandbox } = await getWritable(ctx, name)
  await ctx.db.transaction(async (tx) => {
    const state = await lockState(tx, 'sandbox', sandbox.id)
    if (!(await updateSandbox(tx, sandbox.id, changes))) throw sandboxNotFound()
    if (state === 'running') await enqueue(tx, 'sandbox', sandbox.id)
  })
}

/** The sandbox is no longer visible when this returns; its box and files are removed in the background. */
export async function deleteSandbox(ctx: Context, name: string): Promise<void> {
  const { sandbox } = await getWritable(ctx, name)
  await ctx.db.transaction(async (tx) => {
    await requireAlive(tx, sandbox.id)
    await removeInsideToken(tx, sandbox.id) // its programs run a little longer, and another sandbox may take the name now
    await transition(tx, 'sandbox', sandboxStates, sandbox.id, 'delete')
  })
}

export async function getOrganizationOf(ctx: Context, slug: string | undefined) {
  const asked = slug === undefined ? null : await checked(ctx, () => slugOrNotFound(slug))
  const found = await findOrgSandboxes(ctx.db, ctx.tokenHash, asked)
  requireSandboxCaller(found?.caller)
  if (!found!.org) throw organizationNotFound()
  return found!.org
}

export function getVisible(ctx: Context, name: string): Promise<VisibleSandbox> {
  return getVisibleSandbox(ctx.db, ctx.tokenHash, name)
}

export async function getWritable(ctx: Context, name: string): Promise<VisibleSandbox> {
  const found = await getVisible(ctx, name)
  requireWriter(found.caller)
  return found
}

export async function requireAlive(tx: Tx, id: string): Promise<void> {
  const state = await lockState(tx, 'sandbox', id)
  if (state !== 'cold' && state !== 'running') throw sandboxNotFound()
}

function sandboxNotFound() {
  return notFound('sandbox not found')
}

/** A deletion takes a few seconds to free the slot. */
const retrySeconds = 5

function noRoom(): BerthError {
  const limit = maxSandboxes
  return new BerthError('rate_limited', `there are ${limit} sandboxes, which is the limit of one host; delete some`, {
    status: 'concurrent_sprite_limit_exceeded',
    retryAfterSeconds: retrySeconds,
    limit: { max: limit, windowSeconds: 0 },
  })
}

async function imageOf(ctx: Context, text: string | undefined): Promise<SandboxImage | null> {
  if (text === undefined) return null
  const caller = await getCaller(ctx)
  requireWriter(caller)
  const reference = formatImageReference(parseSandboxImage(text, isOperator(ctx, caller)))
  return { reference, digest: null, env: {}, workingDir: '', problem: null }
}

function parseSandboxImage(text: string, mayUseHost: boolean): ImageReference {
  try {
    return parseImageReference(text, mayUseHost)
  } catch (error) {
    if (!(error instanceof BerthError)) throw error
    throw badRequest(error.message.replace(/^config\./, ''))
  }
}

function sizeOf(ctx: Context, config: SandboxConfig): SandboxChanges {
  const memoryMb = config.ram_mb ?? config.ramMB
  const storageGb = config.storage_gb ?? config.storageGB
  return {
    ...(memoryMb !== undefined && { memoryMb }),
    ...(config.cpus !== undefined && { cpus: config.cpus }),
    ...(storageGb !== undefined && { storageGb }),
    ...(config.region && { region: regionOf(ctx, config.region) }),
  }
}

function regionOf(ctx: Context, asked: string | undefined): string {
  const region = chooseRegion(ctx.settings, asked)
  if (region instanceof BerthError) throw badRequest(`config.${region.message}`)
  return region
}

function checkLabels(labels: string[]): string[] {
  return [...new Set(labels)]
}

function checkEnvironment(environment: Record<string, string>): Record<string, string> {
  for (const [name, value] of Object.entries(environment)) {
    if (!variablePattern.test(name)) {
      throw badRequest('environment must have names of letters, digits and underscores, not starting with a digit')
    }
    if (value.includes('\0')) throw badRequest(`environment.${name} must not contain NUL characters`)
  }
  if (Buffer.byteLength(JSON.stringify(environment)) > maxEnvironmentBytes) {
    throw badRequest(`environment must not be larger than ${maxEnvironmentBytes / 1024} KiB`)
  }
  return environment
}
