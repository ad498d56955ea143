// Decides with which token of a request each field at the top of a query is answered. Tokens with caveats get the fields below
// only. What hangs below a field belongs to its resource, or is filtered by the actions that list it.
import { requireAccess, type Target } from '../../actions/account/access.ts'
import type { Credential } from '../../actions/account/credential.ts'
import { requireToken } from '../../actions/context.ts'
import type { LiveContext } from '../../live/context.ts'
import { action } from '../../model/account/access.ts'
import { BerthError } from '../../model/errors.ts'
import type { Asker } from './node.ts'
import { getOrgById, mutationRoot, queryRoot } from './root.ts'
import type { GraphqlNode } from './view.ts'

interface Requirement {
  bits: number
  targets: Target[] | Promise<Target[]>
}

// biome-ignore lint/suspicious/noExplicitAny: the schema validates the arguments of each field
type Requires = (args: any, asker: Asker) => Requirement

/** For fields that concern no resource, or check each one themselves. */
const nothing: Requires = () => ({ bits: action.read, targets: [] })

const queryRequirements: Record<string, Requires> = {
  viewer: nothing,
  currentUser: nothing,
  organization: nothing,
  organizations: nothing,
  apps: nothing,
  node: nothing,
  appNameAvailable: nothing,
  platform: nothing,
  nearestRegion: nothing,
  machine: nothing,
  volume: nothing,
  addOns: nothing,
  app: ({ name }) => ({ bits: action.read, targets: [{ app: name ?? '' }] }),
  canPerformBluegreenDeployment: ({ name }) => ({ bits: action.read, targets: [{ app: name }] }),
}

const ofApp =
  (bits: number): Requires =>
  ({ input }) => ({ bits, targets: [{ app: input.appId ?? '' }] })

const mutationRequirements: Record<string, Requires> = {
  createApp: ({ input }, asker) => ({
    bits: action.create,
    targets: getOrgById(asker, input.organizationId).then(({ slug }) => [{ newAppIn: slug }]),
  }),
  setAllowAllCrossNetworkReplays: ({ input }) => ({
    bits: action.write,
    targets: [{ org: input.organizationSlug }],
  }),
  deleteApp: ({ appId, input }) => ({ bits: action.delete, targets: [{ app: input?.appId ?? appId ?? '' }] }),
  setSecrets: ofApp(action.write),
  unsetSecrets: ofApp(action.write),
  createRelease: ofApp(action.create),
  updateRelease: ({ input }) => ({ bits: action.write, targets: [{ release: input.releaseId }] }),
  allocateIpAddress: ({ input }, asker) => ({ bits: action.create, targets: addressTargets(input, asker) }),
  releaseIpAddress: ofApp(action.delete),
}

async function addressTargets(
  { appId, organizationId }: { appId: string; organizationId?: string | null },
  asker: Asker,
): Promise<Target[]> {
  const network = organizationId ? (await getOrgById(asker, organizationId)).slug : undefined
  return [{ app: appId }, { network, app: appId }]
}

/** For fields that are not listed. */
const everything: Requires = () => ({ bits: action.all, targets: ['platform'] })

/** The fields at the top, each answered with the first token that permits it. */
export async function rootFor(ctx: LiveContext, credentials: readonly Credential[]): Promise<GraphqlNode> {
  const askers = [await askerOf(ctx), ...(await otherAskers(ctx, credentials))]
  const root: GraphqlNode = {}
  for (const isMutation of [false, true]) {
    const nodes = askers.map(isMutation ? mutationRoot : queryRoot)
    const requirements = isMutation ? mutationRequirements : queryRequirements
    for (const field of Object.keys(nodes[0]!)) {
      const requires = requirements[field] ?? everything
      const mutation = isMutation ? field : undefined
      root[field] = (args: unknown) =>
        firstPermitted(askers, async (asker, index) => {
          await check(asker, requires, args, mutation)
          const value = nodes[index]![field]
          return typeof value === 'function' ? value(args) : value
        })
    }
  }
  return root
}

async function askerOf(ctx: LiveContext): Promise<Asker> {
  return { ctx, caller: await requireToken(ctx) }
}

async function otherAskers(ctx: LiveContext, credentials: readonly Credential[]): Promise<Asker[]> {
  const askers: Asker[] = []
  for (const { hash, attenuation } of credentials.length > 1 ? credentials : []) {
    if (hash.equals(ctx.tokenHash) && attenuation === ctx.attenuation) continue
    const other = await orRefusal(askerOf({ ...ctx, tokenHash: hash, attenuation }))
    if (!(other instanceof BerthError)) askers.push(other)
  }
  return askers
}

async function check({ ctx, caller }: Asker, requires: Requires, args: unknown, mutation: string | undefined) {
  if (!ctx.attenuation) return
  const { targets, bits } = requires(args, { ctx, caller })
  await requireAccess(ctx, await targets, bits, mutation)
}

const refusals: readonly string[] = ['unauthorized', 'forbidden', 'not_found']

/** The refusal of the first token, when none permits it. */
async function firstPermitted<T>(askers: Asker[], answer: (asker: Asker, index: number) => Promise<T>): Promise<T> {
  let first: BerthError | undefined
  for (const [index, asker] of askers.entries()) {
    const value = await orRefusal(answer(asker, index))
    if (!(value instanceof BerthError)) return value
    first ??= value
  }
  throw first
}

async function orRefusal<T>(value: Promise<T>): Promise<T | BerthError> {
  try {
    return await value
  } catch (err) {
    if (err instanceof BerthError && refusals.includes(err.code)) return err
    throw err
  }
}
