import { Type } from 'typebox'
import { createOrg, getVisibleOrg, listVisibleOrgs, updateOrg } from '../../actions/account/org.ts'
import { CreateOrg, type Org, UpdateOrg } from '../../model/account/org.ts'
import { toRfc3339 } from '../../model/time.ts'
import { noOrganization, readOnly } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'

const OrgView = Type.Object(
  {
    id: Type.String(),
    slug: Type.String(),
    name: Type.String(),
    internal_numeric_id: Type.Integer(),
    cross_network_replays: Type.Boolean({
      description: 'Whether `fly-replay` may route requests to apps in other private networks of the organization.',
    }),
    created_at: Type.String({ format: 'date-time' }),
  },
  { title: 'Organization' },
)

const params = Type.Object({ org_slug: Type.String() })

export const orgRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/orgs',
    id: 'createOrg',
    tag: 'Organizations',
    summary: 'Create an organization',
    scope: 'write',
    body: CreateOrg,
    status: 201,
    response: OrgView,
    errors: {
      403: 'Only a root token may create organizations.',
      422: 'A field is not valid, or the slug is taken (`status` is then `name_taken`).',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => orgView(await createOrg(ctx, body)),
  }),
  route({
    method: 'GET',
    path: '/v1/orgs',
    id: 'listOrgs',
    tag: 'Organizations',
    summary: 'List the organizations this token may see',
    scope: 'read',
    status: 200,
    response: Type.Object({ organizations: Type.Array(OrgView) }, { title: 'OrganizationList' }),
    errors: {},
    wrongTypeStatus: 400,
    targets: 'none', // the list holds what the token may see
    run: async ({ ctx }) => ({ organizations: (await listVisibleOrgs(ctx)).map(orgView) }),
  }),
  route({
    method: 'GET',
    path: '/v1/orgs/{org_slug}',
    id: 'getOrg',
    tag: 'Organizations',
    summary: 'Get an organization',
    scope: 'read',
    params,
    status: 200,
    response: OrgView,
    errors: { 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => orgView(await getVisibleOrg(ctx, params.org_slug)),
  }),
  route({
    method: 'PATCH',
    path: '/v1/orgs/{org_slug}',
    id: 'updateOrg',
    tag: 'Organizations',
    summary: 'Change the settings of an organization',
    scope: 'write',
    params,
    body: UpdateOrg,
    status: 200,
    response: OrgView,
    errors: { 403: readOnly, 404: noOrganization },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => orgView(await updateOrg(ctx, params.org_slug, body)),
  }),
]

/** The organization as part of other resources. */
export function organizationView(org: Pick<Org, 'name' | 'slug' | 'numericId'>) {
  return { name: org.name, slug: org.slug, internal_numeric_id: org.numericId }
}

function orgView(org: Org) {
  return {
    id: org.id,
    ...organizationView(org),
    cross_network_replays: org.crossNetworkReplays,
    created_at: toRfc3339(org.createdAt),
  }
}
