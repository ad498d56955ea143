import { requirePermitted } from '../../actions/account/access.ts'
import { getOrg } from '../../actions/account/org.ts'
import { getCurrentToken, listTokensOf } from '../../actions/account/token.ts'
import { getApp, listAppsOf } from '../../actions/app/app.ts'
import { listIpsOf } from '../../actions/app/ip.ts'
import { listMachinesOf } from '../../actions/app/machine.ts'
import { findCurrentRelease, findDefinitionOf, listReleasesOf } from '../../actions/app/release.ts'
import { listSecretsOf } from '../../actions/app/secret.ts'
import { readCursor, writeCursor } from '../../actions/cursor.ts'
import { describeImage } from '../../live/app/image.ts'
import type { LiveContext } from '../../live/context.ts'
import { action, wholeApp } from '../../model/account/access.ts'
import { firstOrg, type Org } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { type AppSummary, appStatus } from '../../model/app/app.ts'
import type { Ip } from '../../model/app/ip.ts'
import { nowMicros } from '../../model/time.ts'
import { imageVersionNode, machineNode, regionNodesOf, serviceNodes } from './machine.ts'
import { connection, type GraphqlNode, imageNode, ipNode, releaseNode, secretNode, tokenNode } from './view.ts'

/** The context and the caller, for fields that are resolved on demand. */
export interface Asker {
  ctx: LiveContext
  caller: Caller
}

export function organizationNode(asker: Asker, org: Pick<Org, 'id' | 'numericId' | 'slug' | 'name'>): GraphqlNode {
  return {
    __typename: 'Organization',
    id: org.id,
    internalNumericId: org.numericId,
    slug: org.slug,
    rawSlug: org.slug,
    name: org.name,
    type: org.slug === firstOrg ? 'PERSONAL' : 'SHARED',
    viewerRole: asker.caller.kind === 'read' ? 'member' : 'admin',
    // Billing does not exist here; the values are those that make clients permit all operations.
    paidPlan: true,
    billable: true,
    billingStatus: 'CURRENT',
    isCreditCardSaved: true,
    provisionsBetaExtensions: false,
    remoteBuilderImage: '',
    allowAllCrossNetworkReplays: async () => (await getOrg(asker.ctx, asker.caller, org.slug)).crossNetworkReplays,
    allowedReplaySourceOrgSlugs: [],
    addOns: connection([]),
    members: { ...connection([]), edges: [] },
    limitedAccessTokens: async () => connection(await activeTokens(asker, org.slug)),
    apps: (query: PageQuery) => appPage(asker, [org], query),
  }
}

/** Tokens that may not list tokens get an empty list instead of an error, so that the rest of their query is answered. */
async function activeTokens({ ctx, caller }: Asker, orgSlug: string, appId?: string): Promise<GraphqlNode[]> {
  if (caller.kind === 'read' || caller.kind === 'app' || ctx.attenuation) return []
  const now = nowMicros()
  const tokens = await listTokensOf(ctx, orgSlug, appId)
  return tokens
    .filter((token) => token.revokedAt === null && (token.expiresAt === null || token.expiresAt > now))
    .map(tokenNode)
}

export function appNode(asker: Asker, app: AppSummary): GraphqlNode {
  const { ctx } = asker
  const status = appStatus(app)
  const appUrl = ctx.settings.appUrl(app.name)
  const { hostname } = new URL(appUrl)
  const machines = () => listMachinesOf(ctx, app.name, allMachines)
  const releases = async ({ first }: PageQuery) => connection((await releasesOf(first)).map(releaseNode))
  const releasesOf = (first: number | null | undefined) => listReleasesOf(ctx, app.name, Math.max(1, first ?? 20))
  const newestRelease = async () => (await releasesOf(1)).map(releaseNode)[0]
  return {
    __typename: 'App',
    id: app.name,
    internalNumericId: app.numericId,
    name: app.name,
    status,
    deployed: status !== 'pending',
    hostname,
    appUrl,
    cnameTarget: hostname,
    platformVersion: 'machines',
    network: app.network,
    organization: organizationNode(asker, {
      id: app.orgId,
      numericId: app.orgNumericId,
      slug: app.orgSlug,
      name: app.orgName,
    }),
    version: async () => (await findCurrentRelease(ctx, app.name))?.version ?? 0,
    config: async () => ({ definition: (await findCurrentRelease(ctx, app.name))?.definition ?? {} }),
    currentRelease: newestRelease,
    currentReleaseUnprocessed: async () => {
      const node = await newestRelease()
      // Without a configuration clients guess one from the machines, and remove the process groups that they do not find.
      return node && { ...node, configDefinition: () => findDefinitionOf(ctx, app.name) }
    },
    releases,
    releasesUnprocessed: releases,
    services: async () => serviceNodes(await machines()),
    regions: async () => regionNodesOf(await machines()),
    imageDetails: async () => imageVersionNode(await machines()),
    machines: async ({ state, first }: PageQuery & { state?: string | null }) => {
      const found = (await machines()).filter((machine) => !state || machine.state === state)
      const nodes = found.slice(0, first ?? found.length).map((machine) => machineNode(ctx, machine))
      // A machine refers back to its app.
      return { nodes: nodes.map((node) => ({ ...node, app: () => appNode(asker, app) })), totalCount: found.length }
    },
    allocations: [],
    image: async ({ ref }: { ref: string }) => {
      requirePermitted(ctx, wholeApp({ org: app.orgNumericId, app: app.numericId }, action.write)) // as describeImage does
      return imageNode(await describeImage(ctx, app.name, ref))
    },
    // Clients add the shared address to this list themselves.
    ipAddresses: async () => {
      const own = (await listIpsOf(ctx, app.name)).filter(({ shared }) => !shared)
      return connection(own.map((ip) => addressNode(asker, ip)))
    },
    sharedIpAddress: async () => (await listIpsOf(ctx, app.name)).find(({ shared }) => shared)?.ip ?? '',
    egressIpAddresses: connection([]),
    addOns: connection([]),
    limitedAccessTokens: async () => connection(await activeTokens(asker, app.orgSlug, app.id)),
    hostIssues: connection([]),
    secrets: async () => (await listSecretsOf(ctx, app.name, { show: false, minVersion: 0 })).map(secretNode),
  }
}

export function addressNode(asker: Asker, ip: Ip): GraphqlNode {
  const network = ip.network && { name: ip.network.name, organization: organizationNode(asker, ip.network.org) }
  return { ...ipNode(ip), network }
}

const allMachines = { includeDeleted: false, region: null, states: null, metadata: {} }

export interface PageQuery {
  first?: number | null
  after?: string | null
}

const maxPage = 500
const defaultPage = 200
const cursorPattern = /^[a-z0-9-]{1,63}\/[a-z0-9-]{1,63}$/

/** A page of the apps of these organizations, ordered by organization. */
export async function appPage(asker: Asker, orgs: Pick<Org, 'slug'>[], query: PageQuery): Promise<GraphqlNode> {
  if (asker.caller.kind === 'app') return ownAppPage(asker, orgs, query)
  const limit = Math.min(maxPage, Math.max(1, query.first ?? defaultPage))
  const [from = '', afterName = ''] = query.after ? readCursor('after', cursorPattern, query.after).split('/') : []
  const found: AppSummary[] = []
  for (const { slug } of orgs) {
    if (slug < from || found.length > limit) continue
    // One more than requested shows whether there is another page.
    const wanted = limit + 1 - found.length
    found.push(...(await listApps(asker, slug, wanted, slug === from ? writeCursor(afterName) : undefined)))
  }
  const edges = found.slice(0, limit).map((app) => ({
    cursor: writeCursor(`${app.orgSlug}/${app.name}`),
    node: appNode(asker, app),
  }))
  return {
    nodes: edges.map(({ node }) => node),
    edges,
    totalCount: () => (asker.ctx.attenuation ? edges.length : countApps(asker, orgs)),
    pageInfo: {
      hasNextPage: found.length > limit,
      hasPreviousPage: from !== '',
      startCursor: edges[0]?.cursor ?? '',
      endCursor: edges.at(-1)?.cursor ?? '',
    },
  }
}

/** Reads on while caveats hide apps, so that a page without any is the last one. */
async function listApps(
  { ctx }: Asker,
  slug: string,
  wanted: number,
  after: string | undefined,
): Promise<AppSummary[]> {
  const found: AppSummary[] = []
  let cursor = after
  do {
    const limit = ctx.attenuation ? maxPage : wanted
    const page = await listAppsOf(ctx, { org_slug: slug, limit, ...(cursor !== undefined && { cursor }) })
    found.push(...page.apps)
    cursor = page.nextCursor
  } while (cursor !== undefined && found.length < wanted)
  return found
}

/** A token for one app sees no other. */
async function ownAppPage(asker: Asker, orgs: Pick<Org, 'slug'>[], { after }: PageQuery): Promise<GraphqlNode> {
  const { appName, orgSlug } = await getCurrentToken(asker.ctx)
  const isListed = appName !== null && !after && orgs.some(({ slug }) => slug === orgSlug)
  const nodes = isListed ? [appNode(asker, await getApp(asker.ctx, appName))] : []
  const edges = nodes.map((node) => ({ cursor: '', node }))
  const pageInfo = { hasNextPage: false, hasPreviousPage: false, startCursor: '', endCursor: '' }
  return { ...connection(nodes), edges, pageInfo }
}

async function countApps({ ctx }: Asker, orgs: Pick<Org, 'slug'>[]): Promise<number> {
  let sum = 0
  for (const { slug } of orgs) sum += (await listAppsOf(ctx, { org_slug: slug, limit: 1 })).total
  return sum
}
