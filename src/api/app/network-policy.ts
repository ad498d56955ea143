import { Type } from 'typebox'
import { deletePolicy, getPolicy, listPoliciesOf, putPolicy } from '../../actions/app/network-policy.ts'
import { policiesEnforced, waitUntilApplied } from '../../live/app/network-policy.ts'
import { type AppPolicy, NetworkPolicyView, PutNetworkPolicy } from '../../model/app/network-policy.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'

const ById = Type.Object({
  ...ByApp.properties,
  policy_id: Type.String({ description: 'The id of the policy.' }),
})

const absent = `${noApp} Or: it has no such policy.`
const late = 'The change is stored, but a running machine did not apply it within 10 s; it is applied later.'

export const networkPolicyRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/network_policies',
    alias: '/v1/apps/{app_name}/network_policies/',
    id: 'listNetworkPolicies',
    tag: 'Network policies',
    summary: 'List the network policies of an app, oldest first',
    scope: 'read',
    params: ByApp,
    status: 200,
    response: Type.Array(NetworkPolicyView, { title: 'NetworkPolicyList' }),
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => (await listPoliciesOf(ctx, params.app_name)).map(policyView),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/network_policies',
    id: 'putNetworkPolicy',
    tag: 'Network policies',
    summary: 'Create a network policy, or change the one with this id',
    description:
      'A rule allows ports in one direction and denies all other traffic of the selected machines in that direction; several rules are combined. Replies to allowed traffic pass, and so does traffic through the platform: DNS, requests from the edge, and addresses of apps and clusters in the private network. The policy is in force when the response is sent; connections that are no longer allowed are closed.',
    scope: 'write',
    action: 'write',
    params: ByApp,
    body: PutNetworkPolicy,
    ignoreNulls: true,
    status: 200,
    response: NetworkPolicyView,
    errors: {
      403: notAllowed,
      404: absent,
      422: 'Policies cannot be enforced on this host.',
      503: late,
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { policy, change } = await putPolicy(ctx, params.app_name, body, await policiesEnforced(ctx))
      await waitUntilApplied(ctx, change)
      return policyView(policy)
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/network_policies/{policy_id}',
    id: 'getAppNetworkPolicy',
    tag: 'Network policies',
    summary: 'Show a network policy',
    scope: 'read',
    params: ById,
    status: 200,
    response: NetworkPolicyView,
    errors: { 403: foreignApp, 404: absent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => policyView(await getPolicy(ctx, params.app_name, params.policy_id)),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/network_policies/{policy_id}',
    id: 'deleteNetworkPolicy',
    tag: 'Network policies',
    summary: 'Delete a network policy',
    scope: 'write',
    params: ById,
    status: 204,
    errors: { 403: notAllowed, 404: absent, 503: late },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => waitUntilApplied(ctx, await deletePolicy(ctx, params.app_name, params.policy_id)),
  }),
]

function policyView({ id, name, selector, rules }: AppPolicy) {
  return { id, name, selector, rules }
}
