import { type Static, Type } from 'typebox'
import { badRequest } from '../errors.ts'
import type { Machine } from './machine.ts'
import { checkMetadata } from './machine-config-env.ts'

// Unknown fields are rejected, because ignoring one could make a rule wider than intended.
const strict = { additionalProperties: false }

const maxMachines = 1000
const maxRules = 100
const maxPorts = 100
/** Per app. */
export const maxPolicies = 100

const Selector = Type.Object(
  {
    all: Type.Optional(Type.Boolean({ description: 'Every machine of the app.' })),
    machines: Type.Optional(
      Type.Array(Type.Object({ id: Type.String() }, strict), {
        maxItems: maxMachines,
        description: 'The machine is one of these.',
      }),
    ),
    metadata: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description: 'The metadata of the machine has all of these values.',
      }),
    ),
  },
  { title: 'PolicySelector', description: 'Selects the machines that meet all given conditions.', ...strict },
)

const Rule = Type.Object(
  {
    action: Type.Enum(['allow']),
    direction: Type.Enum(['ingress', 'egress']),
    ports: Type.Optional(
      Type.Array(
        Type.Object(
          { protocol: Type.Enum(['tcp', 'udp']), port: Type.Integer({ minimum: 1, maximum: 65_535 }) },
          { title: 'PolicyPort', ...strict },
        ),
        { maxItems: maxPorts, description: 'Destination ports. An empty list allows nothing.' },
      ),
    ),
  },
  { title: 'PolicyRule', ...strict },
)

export const PutNetworkPolicy = Type.Object(
  {
    id: Type.Optional(Type.String({ description: 'The policy to replace; creates a new one when omitted.' })),
    name: Type.String({
      pattern: '^[^\\u0000-\\u001f\\u007f]{1,128}$',
      description: 'Display name, which need not be unique.',
      refusal: 'name must be 1 to 128 characters, none of which is a control character',
    }),
    selector: Selector,
    rules: Type.Optional(Type.Array(Rule, { maxItems: maxRules })),
  },
  {
    ...strict,
    examples: [
      {
        name: 'web out',
        selector: { all: true },
        rules: [{ action: 'allow', direction: 'egress', ports: [{ protocol: 'tcp', port: 443 }] }],
      },
    ],
  },
)
export type PutNetworkPolicy = Static<typeof PutNetworkPolicy>

export const NetworkPolicyView = Type.Object(
  { id: Type.String(), name: Type.String(), selector: Selector, rules: Type.Array(Rule) },
  { title: 'NetworkPolicy' },
)

interface PolicySelector {
  all?: true
  machines?: { id: string }[]
  metadata?: Record<string, string>
}

export interface PolicyRule {
  action: 'allow'
  direction: 'ingress' | 'egress'
  ports: { protocol: 'tcp' | 'udp'; port: number }[]
}

export interface AppPolicy {
  id: string
  name: string
  selector: PolicySelector
  rules: PolicyRule[]
}

/** Empty lists count as absent, because some clients send them for unset fields. */
export function readPolicy({ name, selector, rules }: PutNetworkPolicy): Omit<AppPolicy, 'id'> {
  return {
    name,
    selector: readSelector(selector),
    rules: (rules ?? []).map(({ action, direction, ports }) => ({
      action: action as 'allow',
      direction: direction as PolicyRule['direction'],
      ports: (ports ?? []) as PolicyRule['ports'],
    })),
  }
}

function readSelector({ all, machines, metadata }: PutNetworkPolicy['selector']): PolicySelector {
  const selector: PolicySelector = {
    ...(all && { all }),
    ...(machines?.length && { machines }),
    ...(metadata && Object.keys(metadata).length > 0 && { metadata }),
  }
  checkMetadata('selector.metadata', selector.metadata)
  if (Object.keys(selector).length === 0)
    throw badRequest('selector must have at least one of all, machines and metadata')
  return selector
}

export interface OpenPorts {
  tcp: number[]
  udp: number[]
}

/** The traffic one machine may receive and send. An absent direction is unrestricted. */
export interface TrafficPolicy {
  ingress?: OpenPorts
  egress?: OpenPorts
}

/** Merges the policies that select the machine; traffic is allowed if any of them allows it. */
export function trafficOf(policies: AppPolicy[], machine: Pick<Machine, 'id' | 'config'>): TrafficPolicy {
  const rules = policies.filter(({ selector }) => isSelected(selector, machine)).flatMap((policy) => policy.rules)
  const traffic: TrafficPolicy = {}
  for (const direction of ['ingress', 'egress'] as const) {
    const own = rules.filter((rule) => rule.direction === direction)
    if (own.length > 0) traffic[direction] = openPorts(own)
  }
  return traffic
}

function isSelected({ machines, metadata = {} }: PolicySelector, { id, config }: Pick<Machine, 'id' | 'config'>) {
  if (machines && !machines.some((one) => one.id === id)) return false
  return Object.entries(metadata).every(([key, value]) => config.metadata?.[key] === value)
}

function openPorts(rules: PolicyRule[]): OpenPorts {
  const ports = rules.flatMap((rule) => rule.ports)
  const of = (protocol: 'tcp' | 'udp') => {
    const own = ports.filter((one) => one.protocol === protocol).map(({ port }) => port)
    return [...new Set(own)].sort((a, b) => a - b)
  }
  return { tcp: of('tcp'), udp: of('udp') }
}
