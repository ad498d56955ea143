import { Type } from 'typebox'
import { allocateIp, listIpsOf, releaseIpOf } from '../../actions/app/ip.ts'
import { CreateIp, type Ip, ipTypes } from '../../model/app/ip.ts'
import { toRfc3339 } from '../../model/time.ts'
import { noOrganization } from '../error-text.ts'
import { textField } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'

const IpView = Type.Object(
  {
    ip: Type.String(),
    type: Type.Enum([...ipTypes]),
    region: Type.String(),
    service_name: Type.String(),
    shared: Type.Boolean({ description: 'Whether several apps share it; requests are routed by host name.' }),
    egress: Type.Boolean({ description: 'Always false.' }),
    network: Type.Optional(
      Type.Object(
        { name: Type.String(), org_slug: Type.String() },
        { description: 'The private network from which a `private_v6` address is reachable.' },
      ),
    ),
    created_at: Type.String({ format: 'date-time' }),
  },
  { title: 'IpAssignment' },
)

export const ipRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/ip_assignments',
    id: 'listIps',
    tag: 'Addresses',
    summary: 'List the addresses of an app, oldest first',
    scope: 'read',
    params: ByApp,
    status: 200,
    response: Type.Object({ ips: Type.Array(IpView) }, { title: 'IpAssignmentList' }),
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ ips: (await listIpsOf(ctx, params.app_name)).map(ipView) }),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/ip_assignments',
    id: 'allocateIp',
    tag: 'Addresses',
    summary: 'Allocate an address for an app',
    description: 'With its first address, the app is also reachable at its name below the domain.',
    scope: 'write',
    targets: ({ params, body }) => [
      { app: params.app_name! },
      { network: textField(body, 'org_slug'), app: params.app_name! },
    ],
    params: ByApp,
    body: CreateIp,
    ignoreNulls: true,
    status: 200,
    response: IpView,
    errors: {
      403: notAllowed,
      404: `${noApp} Or: ${noOrganization}`,
      409: 'The app already has the shared address.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => ipView(await allocateIp(ctx, params.app_name, body)),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/ip_assignments/{ip}',
    id: 'releaseIp',
    tag: 'Addresses',
    summary: 'Release an address of an app',
    description: 'Released addresses are assigned again only after all unused ones.',
    scope: 'write',
    params: Type.Object({ ...ByApp.properties, ip: Type.String({ description: 'The address.' }) }),
    status: 204,
    errors: { 403: notAllowed, 404: `${noApp} Or: it does not have this address.` },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => releaseIpOf(ctx, params.app_name, params.ip),
  }),
]

function ipView(ip: Ip) {
  return {
    ip: ip.ip,
    type: ip.type,
    region: ip.region,
    service_name: ip.serviceName ?? '',
    shared: ip.shared,
    egress: false,
    ...(ip.network && { network: { name: ip.network.name, org_slug: ip.network.org.slug } }),
    created_at: toRfc3339(ip.createdAt),
  }
}
