// Checks what a request is about to do against the caveats of its token. The resources are looked up first: the caveats name
// organizations and apps by their numeric ids.
import {
  type Access,
  action,
  every,
  type MemberFeature,
  newName,
  newNumber,
  wholeApp,
  wholeOrg,
  wholePlatform,
} from '../../model/account/access.ts'
import { type Caveat, isCurrent, permits } from '../../model/account/caveat.ts'
import { firstOrg, slugPattern } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { BerthError, forbidden, notFound, unauthorized } from '../../model/errors.ts'
import {
  locateApp,
  locateAppOfRelease,
  locateCluster,
  locateOrg,
  locateOwnOrg,
  locateSandbox,
  locateSource,
} from '../../store/account/locate.ts'
import { type Context, requireToken } from '../context.ts'

export interface AppTarget {
  app: string
  machine?: string
  volume?: string
  /** What is started in the machine. */
  command?: readonly string[]
  machineFeature?: string
  /** Bits in place of those of the operation. */
  action?: number
}

/** A resource as requests name it. Without a narrower part it is meant with everything in it. */
export type Target =
  | { org: string | undefined; feature?: MemberFeature }
  | AppTarget
  /** An app that is being created in the organization. */
  | { newAppIn: string | undefined }
  | { cluster: string }
  /** A cluster that is being created: in the organization, or in that of another cluster. */
  | { newClusterIn: string | undefined }
  | { newClusterBeside: string }
  | { sandbox: string }
  /** A sandbox that is being created. */
  | { newSandboxIn: string | undefined }
  | { release: string }
  /** The volume or snapshot that is copied. */
  | { source: string }
  /** The organization of a network, unless it is that of the app. */
  | { network: string | undefined; app: string }
  | 'platform'

type AccessContext = Pick<Context, 'db' | 'area' | 'tokenHash' | 'attenuation'>

/** Throws unless the caveats that were appended to the token permit the action on all of the targets. `mutation` is that of GraphQL. */
export async function requireAccess(
  ctx: AccessContext,
  targets: Target[],
  bits: number,
  mutation?: string,
): Promise<void> {
  const { attenuation } = ctx
  if (!attenuation) return
  const caller = await requireToken(ctx)
  if (!isCurrent(attenuation.caveats)) throw unauthorized('the token has expired, or is not valid yet')
  await requireAccessBy(ctx, caller, attenuation.caveats, targets, bits, mutation)
}

/** For parts of a response that require more than the rest of it. */
export function mayAccess(ctx: AccessContext, targets: Target[], bits: number): Promise<boolean> {
  return isAllowed(requireAccess(ctx, targets, bits))
}

export async function isAllowed(check: Promise<void>): Promise<boolean> {
  try {
    await check
    return true
  } catch (err) {
    if (err instanceof BerthError) return false
    throw err
  }
}

export async function requireAccessBy(
  ctx: Pick<Context, 'db'>,
  caller: Caller,
  caveats: readonly Caveat[],
  targets: Target[],
  bits: number,
  mutation?: string,
): Promise<void> {
  for (const target of targets) {
    const access = await accessTo(ctx, caller, target, bits)
    if (access && !permits(caveats, { ...access, ...(mutation !== undefined && { mutation }) }))
      throw refused(access, targets.some(isCluster))
  }
}

/** The Postgres operations document no 403, so this is a 401 there. */
function refused({ feature }: Access, concernsCluster = false): BerthError {
  const text = 'the caveats of this token do not permit this'
  return concernsCluster || feature === 'postgres' ? unauthorized(text) : forbidden(text)
}

function isCluster(target: Target): boolean {
  return typeof target === 'object' && 'cluster' in target
}

/** Throws unless all caveats permit this access to resources that were looked up already. */
export function requirePermitted(ctx: Pick<Context, 'attenuation'>, access: Access): void {
  if (!isPermitted(ctx, access)) throw refused(access)
}

export function isPermitted({ attenuation }: Pick<Context, 'attenuation'>, access: Access): boolean {
  return !attenuation || permits(attenuation.caveats, access)
}

/** Undefined when there is nothing to check. */
async function accessTo(
  { db }: Pick<Context, 'db'>,
  caller: Caller,
  target: Target,
  bits: number,
): Promise<Access | undefined> {
  if (target === 'platform') return wholePlatform(bits)
  if ('network' in target) return networkAccess(db, caller, target, bits)
  if ('newAppIn' in target)
    return { action: action.create, org: await orgOf(db, caller, target.newAppIn), app: newNumber }
  if ('org' in target) return orgAccess(db, caller, target, bits)
  if ('app' in target) return appAccess(await located(locateApp(db, caller, nameOf(target.app)), 'app'), target, bits)
  if ('release' in target)
    return wholeApp(await located(locateAppOfRelease(db, caller, idOf(target.release)), 'release'), bits)
  if ('source' in target) return sourceAccess(db, caller, target.source)
  if ('newSandboxIn' in target)
    return { action: action.create, org: await orgOf(db, caller, target.newSandboxIn), feature: 'sandbox' }
  if ('sandbox' in target) {
    const { org } = await located(locateSandbox(db, caller, nameOf(target.sandbox)), 'sandbox')
    return { action: bits, org, feature: 'sandbox' }
  }
  return clusterAccess(db, caller, target, bits)
}

type Reader = Context['db']

async function orgAccess(
  db: Reader,
  caller: Caller,
  { org: slug, feature }: Extract<Target, { org: unknown }>,
  bits: number,
): Promise<Access> {
  const org = slug === undefined && caller.orgId === null ? every : await orgOf(db, caller, slug)
  if (feature === undefined) return wholeOrg(org, bits)
  return { action: bits, org, feature, ...(feature === 'postgres' && { cluster: every }) }
}

/** Without a slug: the organization of the token, or that in which a root token creates resources by default. */
async function orgOf(db: Reader, caller: Caller, slug: string | undefined): Promise<number> {
  const found =
    slug === undefined && caller.orgId !== null
      ? locateOwnOrg(db, caller.orgId)
      : locateOrg(db, caller, nameOf(slug ?? firstOrg))
  return (await located(found, 'organization')).org
}

async function clusterAccess(
  db: Reader,
  caller: Caller,
  target: { cluster: string } | { newClusterIn: string | undefined } | { newClusterBeside: string },
  bits: number,
): Promise<Access> {
  const created = { action: action.create, feature: 'postgres', cluster: newName } as const
  if ('newClusterIn' in target) return { ...created, org: await orgOf(db, caller, target.newClusterIn) }
  const id = 'cluster' in target ? target.cluster : target.newClusterBeside
  const { org } = await located(locateCluster(db, caller, idOf(id)), 'Cluster')
  return 'cluster' in target ? { action: bits, feature: 'postgres', org, cluster: id } : { ...created, org }
}

function appAccess(
  { org, app }: { org: number; app: number },
  { machine, volume, command, machineFeature, action: ownBits }: AppTarget,
  operationBits: number,
): Access {
  const bits = ownBits ?? operationBits
  if (machine === undefined && volume === undefined) return wholeApp({ org, app }, bits)
  return {
    action: bits,
    org,
    app,
    ...(machine !== undefined && { machine }),
    ...(volume !== undefined && { volume }),
    ...(command !== undefined && { command }),
    ...(machineFeature !== undefined && { machineFeature }),
  }
}

async function sourceAccess(db: Reader, caller: Caller, id: string): Promise<Access> {
  const { org, app, volume } = await located(locateSource(db, caller, idOf(id)), 'volume or snapshot')
  return { action: action.read, org, app, volume }
}

async function networkAccess(
  db: Reader,
  caller: Caller,
  { network, app }: Extract<Target, { network: unknown }>,
  bits: number,
): Promise<Access | undefined> {
  if (!network) return undefined
  const [own, other] = await Promise.all([
    located(locateApp(db, caller, nameOf(app)), 'app'),
    located(locateOrg(db, caller, nameOf(network)), 'organization'),
  ])
  return own.org === other.org ? undefined : wholeOrg(other.org, bits)
}

async function located<T>(found: Promise<T | undefined>, what: string): Promise<T> {
  const resource = await found
  if (!resource) throw notFound(`${what} not found`)
  return resource
}

/** Apps and sandboxes are named as organizations are. */
const namePattern = new RegExp(slugPattern)

/** Invalid names must not reach the database, which rejects NUL bytes with an error. */
function nameOf(text: unknown): string {
  return typeof text === 'string' && namePattern.test(text) ? text : ''
}

function idOf(text: unknown): string {
  return typeof text === 'string' && /^[A-Za-z0-9_-]{1,64}$/.test(text) ? text : ''
}
