import { type Static, Type } from 'typebox'
import { BerthError, invalid } from '../errors.ts'

interface QuotaRow {
  /** The limit of an organization when neither the operator nor a root token has set another. */
  standard: number
  about: string
}

/**
 * Everything that an organization can have only so much of. Machines and sandboxes share 1,023 slots with all other
 * organizations, so their limits are far below it.
 */
export const quotaTable = {
  apps: { standard: 1000, about: 'apps' },
  machines: { standard: 100, about: 'machines' },
  volumes: { standard: 200, about: 'volumes' },
  snapshots: { standard: 500, about: 'snapshots of volumes that were asked for; daily ones do not count' },
  secrets: { standard: 5000, about: 'secrets and secret keys of all apps' },
  addresses: { standard: 100, about: 'IP addresses of apps' },
  networks: { standard: 50, about: 'private networks; one is created for each network name in use, for good' },
  hostnames: { standard: 500, about: 'custom host names of apps, with their certificates' },
  clusters: { standard: 20, about: 'Postgres clusters; restored ones count, drills do not' },
  database_users: { standard: 1000, about: 'users of clusters that were created over the API' },
  backups: { standard: 200, about: 'backups of clusters that were asked for; scheduled ones do not count' },
  sandboxes: { standard: 100, about: 'sandboxes' },
  checkpoints: { standard: 1000, about: 'checkpoints of sandboxes; automatic ones do not count' },
  images: { standard: 200, about: 'image references of machines and sandboxes, until the host may forget the image' },
  disk_gb: { standard: 2000, about: 'disk that clusters, volumes and sandboxes reserve, in GB' },
  tokens: { standard: 500, about: 'tokens that are neither revoked nor expired' },
  commands: { standard: 500, about: 'commands that run in sandboxes, with or without a connection' },
  sockets: { standard: 500, about: 'open WebSockets, streams and requests that wait, of all tokens together' },
} as const satisfies Record<string, QuotaRow>

export type QuotaName = keyof typeof quotaTable
export const quotaNames = Object.keys(quotaTable) as QuotaName[]

/** Null means unlimited. */
export type QuotaLimits = Record<QuotaName, number | null>

export interface Quota {
  name: QuotaName
  limit: number | null
  used: number
  /** Whether the organization has its own limit instead of the platform's default. */
  isOwn: boolean
}

export interface OrgQuotas {
  orgId: string
  slug: string
  quotas: Quota[]
}

const maxLimit = 1_000_000_000

const limitOf = (name: QuotaName) =>
  Type.Union([Type.Integer(), Type.String()], { description: `The limit for ${quotaTable[name].about}.` })

/** Quotas that are not mentioned stay as they are. */
export const SetQuotas = Type.Object(
  Object.fromEntries(quotaNames.map((name) => [name, Type.Optional(limitOf(name))])),
  {
    additionalProperties: false,
    description: 'Each limit is a whole number, `unlimited`, or `default` for the default of the platform.',
  },
)
export type SetQuotas = Static<typeof SetQuotas>

export interface QuotaChange {
  name: QuotaName
  /** `default` removes the organization's own limit. */
  limit: number | null | 'default'
}

export function readQuotaChanges(asked: SetQuotas): QuotaChange[] {
  return Object.entries(asked).map(([name, value]) => ({ name: name as QuotaName, limit: readLimit(name, value) }))
}

function readLimit(name: string, value: unknown): QuotaChange['limit'] {
  if (value === 'unlimited') return null
  if (value === 'default') return 'default'
  if (Number.isInteger(value) && Number(value) >= 0 && Number(value) <= maxLimit) return Number(value)
  throw invalid(`${name} must be a whole number from 0 to ${maxLimit}, "unlimited" or "default"`)
}

export function isQuotaName(name: string): name is QuotaName {
  return Object.hasOwn(quotaTable, name)
}

export function standardQuotas(): QuotaLimits {
  return Object.fromEntries(quotaNames.map((name) => [name, quotaTable[name].standard])) as QuotaLimits
}

/** Reads a list such as `clusters=5,disk_gb=unlimited` and returns all limits; those not in the list are the standard ones. */
export function parseQuotas(text: string): QuotaLimits {
  const limits = standardQuotas()
  for (const item of text.split(',').map((part) => part.trim())) {
    if (item === '') continue
    const [, name = '', value = ''] = /^([a-z_]+)\s*=\s*(\d{1,9}|unlimited)$/.exec(item) ?? []
    if (!isQuotaName(name)) {
      throw new Error(`"${item}" is not one of ${quotaNames.join(', ')}, followed by = and a number or unlimited`)
    }
    limits[name] = value === 'unlimited' ? null : Number(value)
  }
  return limits
}

/** How a quota was exceeded. */
export interface Excess {
  /** The slug of the organization. */
  organization: string
  quota: string
  limit: number
  used: number
  asked: number
}

export const quotaExceededStatus = 'quota_exceeded'

export function quotaExceeded({ organization, quota, limit, used, asked }: Excess): BerthError {
  const more = asked > 1 ? ` and ${asked} more were asked for` : ''
  return invalid(
    `quota ${quota} exceeded: organization ${organization} uses ${used} of ${limit}${more}; ` +
      'delete what is not needed, or ask the operator of the platform to raise the quota',
    { status: quotaExceededStatus, excess: { organization, quota, limit, used } },
  )
}

/** A deletion takes a few seconds to free the slot. */
const slotRetrySeconds = 5

/** What was deleted is still being removed from the host. */
export function tooManyRemovals({ organization, limit, used }: Excess): BerthError {
  return new BerthError(
    'rate_limited',
    `organization ${organization} has ${used} of at most ${limit} machines and sandboxes that exist or are being ` +
      'removed; try again in a few seconds',
    { status: quotaExceededStatus, retryAfterSeconds: slotRetrySeconds, limit: { max: limit, windowSeconds: 0 } },
  )
}

/** Quotas of what exists only as long as the control plane runs. */
export type LiveQuota = 'sockets' | 'commands'

/** A socket or a command may end at any time, and nothing tells when. */
const liveRetrySeconds = 1

export function tooManyOpen(quota: LiveQuota, organization: string, limit: number): BerthError {
  return new BerthError(
    'rate_limited',
    `quota ${quota} exceeded: organization ${organization} uses ${limit} of ${limit}; end some, or ask the operator of ` +
      'the platform to raise the quota',
    {
      status: quotaExceededStatus,
      retryAfterSeconds: liveRetrySeconds,
      limit: { max: limit, windowSeconds: 0 },
    },
  )
}
