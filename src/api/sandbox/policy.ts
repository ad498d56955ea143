import {
  clearPrivileges,
  clearResources,
  getNetworkPolicy,
  getPrivileges,
  getResources,
  setNetworkPolicy,
  setPrivileges,
  setResources,
} from '../../actions/sandbox/policy.ts'
import { applyNetworkPolicy, requireEnforceable } from '../../live/sandbox/policy.ts'
import { NetworkPolicyBody, PrivilegesPolicy, ResourcesPolicy } from '../../model/sandbox/policy.ts'
import { readOnly } from '../error-text.ts'
import { type Route, route } from '../http/route.ts'
import { ByName, cannotStart, sandboxAbsent } from './sandbox.ts'

const reading = {
  method: 'GET',
  tag: 'Policies',
  scope: 'read',
  params: ByName,
  status: 200,
  errors: { 404: sandboxAbsent },
  wrongTypeStatus: 400,
} as const

const changing = {
  tag: 'Policies',
  scope: 'write',
  params: ByName,
  status: 204,
  errors: { 403: readOnly, 404: sandboxAbsent },
  wrongTypeStatus: 400,
} as const

const network = '/v1/sandboxes/{name}/policy/network'
const privileges = '/v1/sandboxes/{name}/policy/privileges'
const resources = '/v1/sandboxes/{name}/policy/resources'

export const policyRoutes: Route[] = [
  route({
    ...reading,
    path: network,
    id: 'getNetworkPolicy',
    summary: 'Show the network policy of a sandbox',
    response: NetworkPolicyBody,
    run: ({ ctx, params }) => getNetworkPolicy(ctx, params.name),
  }),
  route({
    ...changing,
    method: 'POST',
    path: network,
    id: 'setNetworkPolicy',
    action: 'write',
    summary: 'Set the network policy of a sandbox',
    description:
      'Without rules, everything except private networks is allowed. With rules, the most specific domain applies, and everything else is denied. The policy is in force when the response is sent; connections that are no longer allowed are closed.',
    body: NetworkPolicyBody,
    errors: { ...changing.errors, 409: cannotStart, 422: 'Rules cannot be enforced on this machine.' },
    run: async ({ ctx, params, body }) => {
      await setNetworkPolicy(ctx, params.name, body, () => requireEnforceable(ctx, body.rules))
      await applyNetworkPolicy(ctx, params.name)
    },
  }),
  route({
    ...reading,
    path: privileges,
    id: 'getPrivilegesPolicy',
    summary: 'Show the privileges of root in a sandbox',
    response: PrivilegesPolicy,
    run: async ({ ctx, params }) => {
      const { profile } = await getPrivileges(ctx, params.name)
      return { profile, devices: [], noNewPrivileges: true }
    },
  }),
  route({
    ...changing,
    method: 'POST',
    path: privileges,
    id: 'setPrivilegesPolicy',
    action: 'write',
    summary: 'Set the privileges of root in a sandbox',
    description:
      'Applies to new commands immediately and to services from the next start of the sandbox. Privileges that cannot be granted are refused.',
    body: PrivilegesPolicy,
    run: ({ ctx, params, body }) => setPrivileges(ctx, params.name, body),
  }),
  route({
    ...changing,
    method: 'DELETE',
    path: privileges,
    id: 'deletePrivilegesPolicy',
    summary: 'Reset the privileges to the default',
    run: ({ ctx, params }) => clearPrivileges(ctx, params.name),
  }),
  route({
    ...reading,
    path: resources,
    id: 'getResourcesPolicy',
    summary: 'Show the limits of a sandbox',
    response: ResourcesPolicy,
    run: async ({ ctx, params }) => {
      const { memoryMb } = await getResources(ctx, params.name)
      return { memory: { limit_mb: memoryMb, autoscale: false } }
    },
  }),
  route({
    ...changing,
    method: 'POST',
    path: resources,
    id: 'setResourcesPolicy',
    action: 'write',
    summary: 'Set the limits of a sandbox',
    description: 'Applies immediately and overrides `config.ram_mb` until it is deleted.',
    body: ResourcesPolicy,
    run: ({ ctx, params, body }) => setResources(ctx, params.name, body),
  }),
  route({
    ...changing,
    method: 'DELETE',
    path: resources,
    id: 'deleteResourcesPolicy',
    summary: 'Reset the limits to those of the configuration',
    run: ({ ctx, params }) => clearResources(ctx, params.name),
  }),
]
