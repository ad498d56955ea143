import { type Static, Type } from 'typebox'
import { badRequest } from '../errors.ts'

export type NetworkRule = { domain: string; action: 'allow' | 'deny' } | { include: 'defaults' }
export interface NetworkPolicy {
  rules: NetworkRule[]
}

/** More rules would slow down every DNS lookup. */
const maxRules = 1000

const strict = { additionalProperties: false }

/** The schema is loose, because `readNetworkPolicy` gives better errors about single rules. */
export const NetworkPolicyBody = Type.Object(
  {
    rules: Type.Array(
      Type.Object(
        {
          domain: Type.Optional(
            Type.String({
              description: 'A name, `*.name` for all below it, or `*` for all; the most specific one applies.',
            }),
          ),
          action: Type.Optional(Type.Enum(['allow', 'deny'])),
          include: Type.Optional(
            Type.Enum(['defaults'], { description: 'The host names of common package registries.' }),
          ),
        },
        { ...strict, examples: [{ domain: '*.example.com', action: 'allow' }] },
      ),
      { maxItems: maxRules },
    ),
  },
  { title: 'NetworkPolicy', ...strict },
)

const domainPattern = /^(\*|(\*\.)?[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*)$/

export function readNetworkPolicy(body: Static<typeof NetworkPolicyBody>): NetworkPolicy {
  return { rules: body.rules.map((rule, index) => readRule(rule, `rules.${index}`)) }
}

function readRule(rule: Static<typeof NetworkPolicyBody>['rules'][number], place: string): NetworkRule {
  const { domain, action, include } = rule
  if ((domain === undefined) === (include === undefined)) {
    throw badRequest(`${place} must have exactly one of domain and include`)
  }
  if (include !== undefined) {
    if (action !== undefined) throw badRequest(`${place} has an action, which is allowed only with a domain`)
    return { include }
  }
  if (action === undefined) throw badRequest(`${place}.action is required: allow or deny`)
  const name = domain!.toLowerCase().replace(/(?<=[^*])\.$/, '')
  if (name.length > 255 || !domainPattern.test(name)) {
    throw badRequest(`${place}.domain must be a name such as example.com, *.example.com or *`)
  }
  return { domain: name, action }
}

/** The domains of `include: defaults`: package registries and code hosts. */
const defaultDomains = [
  ...['*.debian.org', '*.ubuntu.com', '*.alpinelinux.org', '*.npmjs.org', '*.npmjs.com', 'pypi.org', '*.pypi.org'],
  ...['*.pythonhosted.org', 'crates.io', '*.crates.io', '*.golang.org', 'rubygems.org', '*.rubygems.org'],
  ...['github.com', '*.github.com', '*.githubusercontent.com', 'gitlab.com', '*.gitlab.com'],
]

/** Allows or denies `name` itself or all names below it. The most specific rule applies. */
export interface NameRule {
  name: string
  below: boolean
  allowed: boolean
}

export interface NameRules {
  /** The result for names without a rule. */
  otherwise: boolean
  rules: NameRule[]
}

/**
 * Converts a policy into rules for single names and for subtrees. Resolvers apply the rule of a name to its subtree as
 * well, so every name without a subtree rule gets one that states what applies there.
 */
export function nameRules(policy: NetworkPolicy): NameRules {
  const allowed = new Map<string, boolean>()
  for (const rule of policy.rules) {
    if ('include' in rule) for (const domain of defaultDomains) allowed.set(domain, true)
    else allowed.set(rule.domain, rule.action === 'allow')
  }
  const otherwise = allowed.get('*') ?? false
  const ofBelow = (name: string): boolean =>
    allowed.get(`*.${name}`) ?? (parentOf(name) ? ofBelow(parentOf(name)) : otherwise)
  const rules: NameRule[] = []
  for (const [domain, isAllowed] of allowed) {
    if (domain.startsWith('*.')) rules.push({ name: domain.slice(2), below: true, allowed: isAllowed })
    else if (domain !== '*') {
      rules.push({ name: domain, below: false, allowed: isAllowed })
      if (!allowed.has(`*.${domain}`)) rules.push({ name: domain, below: true, allowed: ofBelow(domain) })
    }
  }
  return { otherwise, rules }
}

function parentOf(name: string): string {
  return name.includes('.') ? name.slice(name.indexOf('.') + 1) : ''
}

const profiles = ['', 'minimal', 'standard', 'privileged'] as const

/** `noNewPrivileges` is spelled as in the API that clients use. */
export const PrivilegesPolicy = Type.Object(
  {
    profile: Type.Optional(
      Type.Enum([...profiles], {
        description:
          '`standard`, which is the default, has what package managers need; with `minimal` root is a user like any other.',
      }),
    ),
    devices: Type.Optional(
      Type.Array(Type.String(), { description: 'Must be empty; sandboxes have no access to devices.' }),
    ),
    noNewPrivileges: Type.Optional(Type.Boolean({ description: 'Always enabled.' })),
  },
  { title: 'PrivilegesPolicy', ...strict },
)
export type PrivilegesPolicy = { profile: 'minimal' | 'standard' }

/** Rejects settings that cannot be enforced rather than storing them. */
export function readPrivileges(body: Static<typeof PrivilegesPolicy>): PrivilegesPolicy {
  if (body.profile === 'privileged') {
    throw badRequest('the profile privileged is not offered: a sandbox has no rights on the host; use standard')
  }
  if ((body.devices ?? []).length > 0) throw badRequest('devices must be empty: sandboxes have no access to devices')
  return { profile: body.profile || 'standard' }
}

export const ResourcesPolicy = Type.Object(
  {
    memory: Type.Optional(
      Type.Object(
        {
          limit_mb: Type.Optional(
            Type.Integer({ minimum: 64, maximum: 1_048_576, description: 'Overrides `config.ram_mb`.' }),
          ),
          autoscale: Type.Optional(
            Type.Boolean({ description: 'Must be false; memory does not scale automatically.' }),
          ),
        },
        strict,
      ),
    ),
  },
  { title: 'ResourcesPolicy', ...strict },
)
export type ResourcesPolicy = { memoryMb: number | null }

export function readResources(body: Static<typeof ResourcesPolicy>): ResourcesPolicy {
  if (body.memory?.autoscale) throw badRequest('memory.autoscale must be false: set memory.limit_mb to what is needed')
  return { memoryMb: body.memory?.limit_mb ?? null }
}
