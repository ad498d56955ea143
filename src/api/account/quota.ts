import { Type } from 'typebox'
import { changeQuotas, getQuotas, listVisibleQuotas } from '../../actions/account/quota.ts'
import { withConnections } from '../../live/connection.ts'
import type { LiveContext } from '../../live/context.ts'
import { type OrgQuotas, quotaNames, quotaTable, SetQuotas } from '../../model/account/quota.ts'
import { noOrganization } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'

const QuotaView = Type.Object({
  name: Type.Enum([...quotaNames]),
  limit: Type.Union([Type.Integer(), Type.Null()], { description: 'Null means unlimited.' }),
  used: Type.Integer({ description: 'How much the organization has now; it may be more than a lowered limit.' }),
  is_default: Type.Boolean({ description: 'Whether the limit is the default of the platform.' }),
  description: Type.String(),
})

const QuotasView = Type.Object(
  { organization: Type.String({ description: 'The slug of the organization.' }), quotas: Type.Array(QuotaView) },
  { title: 'Quotas' },
)

const params = Type.Object({ org_slug: Type.String() })

export const quotaRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/quotas',
    id: 'listQuotas',
    tag: 'Organizations',
    summary: 'List the quotas and the usage of all organizations this token may see',
    scope: 'read',
    status: 200,
    response: Type.Object({ organizations: Type.Array(QuotasView) }, { title: 'QuotasList' }),
    errors: {},
    wrongTypeStatus: 400,
    run: async ({ ctx }) => ({ organizations: (await listVisibleQuotas(ctx)).map((each) => quotasView(ctx, each)) }),
  }),
  route({
    method: 'GET',
    path: '/v1/orgs/{org_slug}/quotas',
    id: 'getQuotas',
    tag: 'Organizations',
    summary: 'Get the quotas and the usage of an organization',
    description:
      'A request that would exceed a quota is refused with 422, with 429 where waiting helps, and the code `quota_exceeded`.',
    scope: 'read',
    params,
    status: 200,
    response: QuotasView,
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => quotasView(ctx, await getQuotas(ctx, params.org_slug)),
  }),
  route({
    method: 'PATCH',
    path: '/v1/orgs/{org_slug}/quotas',
    id: 'updateQuotas',
    tag: 'Organizations',
    summary: 'Change quotas of an organization',
    description:
      'Quotas that are not mentioned stay as they are. A limit below the usage removes nothing; it only prevents more.',
    scope: 'write',
    params,
    body: SetQuotas,
    status: 200,
    response: QuotasView,
    errors: {
      403: 'Only a root token may change quotas.',
      404: noOrganization,
      422: 'A quota does not exist, or a limit is not valid.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => quotasView(ctx, await changeQuotas(ctx, params.org_slug, body)),
  }),
]

function quotasView({ connections }: LiveContext, organization: OrgQuotas) {
  const { slug, quotas } = withConnections(connections, organization)
  return {
    organization: slug,
    quotas: quotas.map((quota) => ({
      name: quota.name,
      limit: quota.limit,
      used: quota.used,
      is_default: !quota.isOwn,
      description: quotaTable[quota.name].about,
    })),
  }
}
