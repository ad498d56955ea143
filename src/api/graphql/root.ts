import { requireAccess, requirePermitted } from '../../actions/account/access.ts'
import { createOrg, getOrg, listOrgsOf, permittedOrgs, updateOrg } from '../../actions/account/org.ts'
import {
  createDeployToken,
  createToken,
  listTokensOf,
  readExpiry,
  revokeTokenById,
} from '../../actions/account/token.ts'
import { createApp, deleteApp, getApp, isNameFree } from '../../actions/app/app.ts'
import { allocateIp, releaseIpOf } from '../../actions/app/ip.ts'
import { createRelease, type NewRelease, updateRelease } from '../../actions/app/release.ts'
import { changeSecrets, listSecretsOf } from '../../actions/app/secret.ts'
import { action } from '../../model/account/access.ts'
import { readMacaroon } from '../../model/account/macaroon.ts'
import { CreateOrg, type Org } from '../../model/account/org.ts'
import { listRegions, regionOf } from '../../model/account/region.ts'
import { CreateToken } from '../../model/account/token.ts'
import { CreateIp, type IpType } from '../../model/app/ip.ts'
import { BerthError, invalid, notFound } from '../../model/errors.ts'
import { checkBody } from '../http/validation.ts'
import { type Asker, addressNode, appNode, appPage, organizationNode, type PageQuery } from './node.ts'
import { connection, type GraphqlNode, regionNode, releaseNode, tokenNode, userNode } from './view.ts'
import { machineById, volumeById } from './volume.ts'

export function queryRoot(asker: Asker): GraphqlNode {
  const { ctx, caller } = asker
  const organizations = async () => organizationList(asker, permittedOrgs(ctx, await listOrgsOf(ctx, caller)))
  return {
    viewer: { ...userNode(caller), organizations },
    currentUser: { ...userNode(caller), organizations },
    organization: async ({ slug, id }: { slug?: string | null; id?: string | null }) => {
      const given = slug || id
      if (!given) throw invalid('organization requires a slug or an id')
      const org = slug ? await getOrgBySlug(asker, slug) : await getOrgById(asker, given)
      requirePermitted(ctx, { action: action.read, org: org.numericId })
      return organizationNode(asker, org)
    },
    organizations,
    app: async ({ name }: { name?: string | null }) => appNode(asker, await getAppByName(asker, name ?? '')),
    apps: async (query: PageQuery & { organizationId?: string | null; role?: string | null }) => {
      // Apps have no roles here.
      if (query.role) return appPage(asker, [], query)
      const orgs = query.organizationId
        ? [await getOrgById(asker, query.organizationId)]
        : await listOrgsOf(ctx, caller)
      return appPage(asker, orgs, query)
    },
    appNameAvailable: ({ name }: { name: string }) => isNameFree(ctx, name),
    platform: () => ({
      requestRegion: ctx.settings.defaultRegion,
      regions: listRegions(ctx.settings).map(regionNode),
    }),
    machine: ({ machineId }: { machineId: string }) => machineById(asker, machineId),
    volume: ({ id }: { id: string }) => volumeById(asker, id),
    addOns: connection([]),
    canPerformBluegreenDeployment: async ({ name }: { name: string }) => {
      await getAppByName(asker, name)
      return true
    },
    nearestRegion: () => regionNode(regionOf(ctx.settings.defaultRegion)),
    node: async ({ id }: { id: string }) => {
      const org = (await listOrgsOf(ctx, caller)).find((one) => one.id === id)
      if (org) {
        requirePermitted(ctx, { action: action.read, org: org.numericId })
        return organizationNode(asker, org)
      }
      await requireAccess(ctx, [{ app: id }], action.read)
      return appNode(asker, await getAppByName(asker, id))
    },
  }
}

interface CreateAppInput {
  organizationId: string
  name?: string | null
  network?: string | null
  enableSubdomains?: boolean | null
  appRoleId?: string | null
}

interface DeleteAppArguments {
  appId?: string | null
  force?: boolean | null
  input?: { appId: string; force?: boolean | null }
}

interface CreateTokenInput {
  name: string
  organizationId: string
  profile: string
  profileParams?: { app_id?: unknown } | null
  expiry?: string | null
}

interface SetSecretsInput {
  appId: string
  secrets: { key: string; value: string }[]
  replaceAll?: boolean | null
}

interface AllocateIpInput {
  appId: string
  type: IpType
  region?: string | null
  organizationId?: string | null
  network?: string | null
  serviceName?: string | null
}

interface ReleaseIpInput {
  appId?: string | null
  ip?: string | null
  /** The same as `ip`: an address is its own id. */
  ipAddressId?: string | null
}

export function mutationRoot(asker: Asker): GraphqlNode {
  const { ctx } = asker
  return {
    createApp: async ({ input }: { input: CreateAppInput }) => {
      const org = await getOrgById(asker, input.organizationId)
      const made = await createApp(ctx, {
        org_slug: org.slug,
        ...(input.name ? { app_name: input.name } : {}),
        ...(input.network ? { network: input.network } : {}),
        ...(input.enableSubdomains ? { enable_subdomains: true } : {}),
        ...(input.appRoleId ? { app_role_id: input.appRoleId } : {}),
      })
      return { app: appNode(asker, { ...made, orgId: org.id, machineCount: 0, startedCount: 0, volumeCount: 0 }) }
    },
    deleteApp: async ({ appId, force, input }: DeleteAppArguments) => {
      const app = await getAppByName(asker, input?.appId ?? appId ?? '')
      await deleteApp(ctx, app.name, input?.force ?? force ?? false)
      return { organization: appNode(asker, app).organization }
    },
    createOrganization: async ({ input }: { input: { name: string } }) => {
      const { name } = input
      const org = await createOrg(ctx, checkBody(CreateOrg, { slug: slugOf(name), name }))
      return { organization: organizationNode(asker, org) }
    },
    setAllowAllCrossNetworkReplays: async ({ input }: { input: { organizationSlug: string; allow: boolean } }) => {
      const { slug } = await getOrgBySlug(asker, input.organizationSlug)
      return {
        organization: organizationNode(asker, await updateOrg(ctx, slug, { cross_network_replays: input.allow })),
      }
    },
    createLimitedAccessToken: async ({ input }: { input: CreateTokenInput }) => {
      const org = await getOrgById(asker, input.organizationId)
      const { id, token } = await issueToken(asker, org, input)
      const made = (await listTokensOf(ctx, org.slug)).find((one) => one.id === id)
      return { limitedAccessToken: { ...tokenNode(made!), token, tokenHeader: `FlyV1 ${token}` } }
    },
    deleteLimitedAccessToken: async ({ input }: { input: { id?: string | null; token?: string | null } }) => {
      await revokeTokenById(ctx, input.id || readMacaroon(input.token ?? '')?.tokenId || '')
      return {}
    },
    setSecrets: ({ input }: { input: SetSecretsInput }) =>
      withApp(asker, input.appId, async (name) => {
        const before = input.replaceAll ? await listSecretsOf(ctx, name, { show: false, minVersion: 0 }) : []
        const removed = before.map((secret) => [secret.name, null] as const)
        const given = input.secrets.map(({ key, value }) => [key, value] as const)
        await changeSecrets(ctx, name, Object.fromEntries<string | null>([...removed, ...given]))
        return undefined
      }),
    createRelease: ({ input }: { input: NewRelease & { appId: string } }) =>
      withApp(asker, input.appId, async (name) => ({ release: releaseNode(await createRelease(ctx, name, input)) })),
    updateRelease: async ({ input }: { input: { releaseId: string; status: string } }) => ({
      release: releaseNode(await updateRelease(ctx, input.releaseId, input.status)),
    }),
    allocateIpAddress: ({ input }: { input: AllocateIpInput }) =>
      withApp(asker, input.appId, async (name) => {
        const { type, region, organizationId, network, serviceName } = input
        const org = organizationId ? await getOrgById(asker, organizationId) : undefined
        const body = checkBody(CreateIp, {
          type,
          ...(region ? { region } : {}),
          ...(org ? { org_slug: org.slug } : {}),
          ...(network ? { network } : {}),
          ...(serviceName ? { service_name: serviceName } : {}),
        })
        return { ipAddress: addressNode(asker, await allocateIp(ctx, name, body)) }
      }),
    releaseIpAddress: ({ input }: { input: ReleaseIpInput }) =>
      withApp(asker, input.appId ?? '', async (name) => {
        await releaseIpOf(ctx, name, input.ip ?? input.ipAddressId ?? '')
        return undefined
      }),
    unsetSecrets: ({ input }: { input: { appId: string; keys: string[] } }) =>
      withApp(asker, input.appId, async (name) => {
        await changeSecrets(ctx, name, Object.fromEntries(input.keys.map((key) => [key, null])))
        return undefined
      }),
  }
}

function slugOf(name: string): string {
  return name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 63)
    .replace(/^-|-$/g, '')
}

/** Maps the token profiles of clients to tokens of the platform. */
async function issueToken(asker: Asker, org: Org, { name, profile, profileParams, expiry }: CreateTokenInput) {
  const { ctx } = asker
  const body = checkBody(CreateToken, {
    kind: 'org',
    org_slug: org.slug,
    format: 'fm2',
    name,
    expires_in_seconds: readExpiry(expiry || undefined),
  })
  if (profile === 'deploy_organization') return createToken(ctx, body)
  if (profile !== 'deploy') throw invalid('profile must be deploy or deploy_organization')
  const app = await getAppByName(asker, String(profileParams?.app_id ?? ''))
  if (app.orgId !== org.id) throw invalid(`app ${app.name} belongs to another organization`)
  return createDeployToken(ctx, app.name, expiry || undefined, name)
}

/** Applies a change and returns the app in its new state. */
async function withApp(
  asker: Asker,
  name: string,
  change: (name: string) => Promise<GraphqlNode | undefined>,
): Promise<GraphqlNode> {
  await getAppByName(asker, name)
  return { ...(await change(name)), app: async () => appNode(asker, await getAppByName(asker, name)) }
}

/** Clients match on the error message `Could not find App`. */
async function getAppByName({ ctx }: Asker, name: string) {
  return withNotFound('App', getApp(ctx, name))
}

async function getOrgBySlug({ ctx, caller }: Asker, slug: string): Promise<Org> {
  return withNotFound('Organization', getOrg(ctx, caller, slug))
}

/** Accepts a slug as well, because people use it in place of the id. */
export async function getOrgById(asker: Asker, id: string): Promise<Org> {
  const found = (await listOrgsOf(asker.ctx, asker.caller)).find((org) => org.id === id)
  return found ?? getOrgBySlug(asker, id)
}

async function withNotFound<T>(kind: string, found: Promise<T>): Promise<T> {
  try {
    return await found
  } catch (err) {
    if (err instanceof BerthError && err.code === 'not_found') throw notFound(`Could not find ${kind}`)
    throw err
  }
}

function organizationList(asker: Asker, orgs: Org[]): GraphqlNode {
  const nodes = orgs.map((org) => organizationNode(asker, org))
  return {
    ...connection(nodes),
    edges: orgs.map((org, index) => ({ cursor: org.slug, node: nodes[index] })),
    pageInfo: {
      hasNextPage: false,
      hasPreviousPage: false,
      startCursor: orgs[0]?.slug ?? '',
      endCursor: orgs.at(-1)?.slug ?? '',
    },
  }
}
