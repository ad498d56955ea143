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
import { applyNetworkPolicy, refuseUnenforced } from '../../live/sandbox/policy.ts'
import { NetworkPolicyBody, PrivilegesPolicy, ResourcesPolicy } from '../../model/sandbox/policy.ts'
import { type Route, route } from '../http/route.ts'
import { ByName, readOnly, sandboxAbsent } from './sandbox.ts'

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
    summary: 'Show what a sandbox may reach',
    response: NetworkPolicyBody,
    run: ({ ctx, params }) => getNetworkPolicy(ctx, params.name),
  }),
  route({
    ...changing,
    method: 'POST',
    path: network,
    id: 'setNetworkPolicy',
    summary: 'Set what a sandbox may reach',
    description:
      'Without rules everything is allowed but private networks. Of several rules the one with the closest domain counts; what none is about is denied. In force when it is answered; connections to what is no longer allowed end.',
    body: NetworkPolicyBody,
    errors: { ...changing.errors, 422: 'Rules cannot be enforced on this machine.' },
    run: async ({ ctx, params, body }) => {
      await setNetworkPolicy(ctx, params.name, body, () => refuseUnenforced(ctx, body.rules))
      await applyNetworkPolicy(ctx, params.name)
    },
  }),
  route({
    ...reading,
    path: privileges,
    id: 'getPrivilegesPolicy',
    summary: 'Show which rights root has inside a sandbox',
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
    summary: 'Set which rights root has inside a sandbox',
    description:
      'It counts for commands at once and for services from the next start of the sandbox on. What cannot be given is refused.',
    body: PrivilegesPolicy,
    run: ({ ctx, params, body }) => setPrivileges(ctx, params.name, body),
  }),
  route({
    ...changing,
    method: 'DELETE',
    path: privileges,
    id: 'deletePrivilegesPolicy',
    summary: 'Go back to the usual rights',
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
    summary: 'Set the limits of a sandbox',
    description: 'It counts at once, and instead of `config.ram_mb` until it is deleted.',
    body: ResourcesPolicy,
    run: ({ ctx, params, body }) => setResources(ctx, params.name, body),
  }),
  route({
    ...changing,
    method: 'DELETE',
    path: resources,
    id: 'deleteResourcesPolicy',
    summary: 'Go back to the limits of the configuration',
    run: ({ ctx, params }) => clearResources(ctx, params.name),
  }),
]
