import { Type } from 'typebox'
import { getOrg, listVisibleOrgs } from '../../actions/account/org.ts'
import { requireToken } from '../../actions/context.ts'
import { firstOrg, type Org } from '../../model/account/org.ts'
import { noOrganization } from '../error-text.ts'
import type { Route } from '../http/route.ts'
import { InternalOrg, internalRoute } from './route.ts'

const OrganizationView = Type.Object(
  {
    id: Type.String(),
    internal_numeric_id: Type.Integer(),
    slug: Type.String(),
    raw_slug: Type.String(),
    name: Type.String(),
    personal: Type.Boolean(),
    paid_plan: Type.Boolean(),
    billable: Type.Boolean(),
    billing_status: Type.String(),
    provisions_beta_extensions: Type.Boolean(),
    remote_builder_image: Type.String(),
  },
  { title: 'FlyctlOrganization' },
)

export const flyctlOrgRoutes: Route[] = [
  internalRoute({
    method: 'GET',
    path: '/api/v1/organizations',
    id: 'flyctlListOrganizations',
    summary: 'List the organizations this token may see',
    scope: 'read',
    query: Type.Object({ admin: Type.Optional(Type.Boolean({ description: 'Has no effect.' })) }),
    status: 200,
    response: Type.Object({ organizations: Type.Array(OrganizationView) }),
    errors: { 422: 'A parameter is not valid.' },
    targets: 'none', // the list holds what the token may see
    run: async ({ ctx }) => ({ organizations: (await listVisibleOrgs(ctx)).map(organizationView) }),
  }),
  internalRoute({
    method: 'GET',
    path: '/api/v1/organizations/{org_slug}',
    id: 'flyctlGetOrganization',
    summary: 'Show an organization',
    scope: 'read',
    params: InternalOrg,
    status: 200,
    response: Type.Object({ organization: OrganizationView }),
    errors: { 404: noOrganization },
    run: async ({ ctx, params }) => ({
      organization: organizationView(await getOrg(ctx, await requireToken(ctx), params.org_slug)),
    }),
  }),
]

/** Billing does not exist here; the values are those that make clients permit all operations. */
function organizationView(org: Org) {
  return {
    id: org.id,
    internal_numeric_id: org.numericId,
    slug: org.slug,
    raw_slug: org.slug,
    name: org.name,
    personal: org.slug === firstOrg,
    paid_plan: true,
    billable: true,
    billing_status: 'CURRENT',
    provisions_beta_extensions: false,
    remote_builder_image: '',
  }
}
