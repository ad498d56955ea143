import { randomInt } from 'node:crypto'
import { type Static, type TSchema, type TSchemaOptions, Type } from 'typebox'
import { OrganizationReference } from '../account/org.ts'
import { invalid } from '../errors.ts'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import { DrillQuery, type LastDrill, LastDrillView } from './drill.ts'
import { maintenanceHours } from './maintenance.ts'
import { plans } from './plan.ts'
import { type LastUpgrade, UpgradeView } from './upgrade.ts'

export const clusterStates = defineStates({
  creating: {
    commands: { delete: 'deleting' },
    outcomes: { placed: 'initializing', failed: 'failed' },
    deadlineMinutes: 5,
  },
  initializing: {
    commands: { delete: 'deleting' },
    outcomes: { ready: 'ready', failed: 'failed' },
    deadlineMinutes: 5,
  },
  // The backup it was restored from may turn out to be damaged.
  ready: {
    commands: { delete: 'deleting', recover: 'initializing' },
    outcomes: { damaged: 'failed' },
    keeps: 'healthy',
  },
  failed: { commands: { delete: 'deleting', recover: 'initializing' }, keeps: 'stopped' },
  deleting: { outcomes: { gone: 'deleted' } },
  // Backups and WAL are kept for the recovery window, so that it can be undeleted.
  deleted: { outcomes: { purged: 'purged' } },
  purged: {},
})

export const clusterStatuses = ['creating', 'initializing', 'ready', 'deleting', 'deleted', 'failed'] as const

/** The status in the API, which does not distinguish `purged` from `deleted`. */
export function clusterStatus(state: State<typeof clusterStates>): (typeof clusterStatuses)[number] {
  return state === 'purged' ? 'deleted' : state
}

/** Throws unless the cluster is ready. `can` completes the sentence `… once it is ready`. */
export function requireReady({ state }: Pick<Cluster, 'state'>, can: string): void {
  if (state === 'ready') return
  const isComing = state === 'creating' || state === 'initializing'
  throw invalid(
    `Cluster is ${clusterStatus(state)}; ${isComing ? `${can} once it is ready` : 'it will not become ready'}`,
  )
}

export const postgresMajors = ['16', '17'] as const
export type PostgresMajor = (typeof postgresMajors)[number]

export const poolModes = ['session', 'transaction'] as const
export type PoolMode = (typeof poolModes)[number]

/** The user and the database every cluster starts with; clients build connection strings from these names. */
export const defaultUser = 'fly-user'
export const defaultDatabase = 'fly-db'

export const clusterEndpoints = ['pooler', 'direct'] as const
export type ClusterEndpoint = (typeof clusterEndpoints)[number]

/** The DNS names of a cluster in the private networks of its organization. */
export function privateNames(id: string): Record<ClusterEndpoint, string> {
  return { pooler: `${id}.pg.internal`, direct: `direct.${id}.pg.internal` }
}

export const privatePort = 5432

type HealthStatus = 'ok' | 'degraded' | 'down' | 'read_only'

export interface Health {
  status: HealthStatus
  reason: string
}

export function degraded(reason: string): Health {
  return { status: 'degraded', reason }
}

export interface RecordedToolchain {
  major: PostgresMajor
  version: string
  source: string
  bin: string
  share: string
  tools: string
}

export interface Cluster {
  id: string
  orgId: string
  name: string
  state: State<typeof clusterStates>
  stateSince: Micros
  progressAt: Micros | null
  plan: string
  pgMajor: PostgresMajor
  diskSizeGb: number
  replicas: number
  region: string
  postgisEnabled: boolean
  /** Extensions that it was created with, which its installation must have. */
  extensions: string[]
  poolMode: PoolMode
  createdAt: Micros
  deletedAt: Micros | null
  toolchain: RecordedToolchain | null
  uid: number | null
  directPort: number | null
  poolerPort: number | null
  health: HealthStatus
  healthReason: string
  healthSince: Micros
  storageProvisionedBytes: number | null
  storageUsedBytes: number | null
  storageMeasuredAt: Micros | null
  quotaCheckedAt: Micros | null
  /** Whether commits wait until the archive has their WAL. */
  synchronousArchive: boolean
  /** Whether its server may run subscriptions, since its first live import. */
  subscribes: boolean
  drillQuery: string | null
  /** How many days the recovery window reaches back; null for the setting of the platform. */
  retentionDays: number | null
  /** When minor upgrades begin by themselves; null for never. */
  maintenanceWindow: string | null
  /** The installed minor version of its major version, as far as it is known. */
  newestVersion: string | null
  scratch: boolean
  retentionAt: Micros | null
  /** Since when the repository's copy of pins, drill query and retention is out of date; null when it is current. */
  undescribedSince: Micros | null
}

/** The fields of a cluster that the API shows, with times in the format of PostgreSQL's JSON. */
export interface ClusterDetails
  extends Pick<
    Cluster,
    | 'id'
    | 'name'
    | 'state'
    | 'plan'
    | 'pgMajor'
    | 'diskSizeGb'
    | 'replicas'
    | 'region'
    | 'postgisEnabled'
    | 'poolMode'
    | 'retentionDays'
    | 'maintenanceWindow'
    | 'newestVersion'
    | 'directPort'
    | 'poolerPort'
    | 'health'
    | 'healthReason'
    | 'storageProvisionedBytes'
    | 'storageUsedBytes'
  > {
  createdAt: string
  deletedAt: string | null
  healthSince: string
  orgName: string
  orgSlug: string
  orgNumericId: number
  attachedApps: string[]
  failure: string | null
  /** In the order of the WAL. */
  passes: [earliest: string | null, latest: string | null, from: string, until: string | null][]
  restore: RestoreView | null
  lastDrill: LastDrill | null
  pgVersion: string | null
  upgrade: LastUpgrade | null
}

/** The restore that created a cluster, with times in the format of PostgreSQL's JSON. */
export interface RestoreView {
  source_cluster_id: string
  backup_id: string | null
  pitr_time: string | null
  phase: string
  bytes_done: number
  bytes_total: number | null
  replayed_until: string | null
  verified_at: string | null
  /** Why a recovery changed nothing. */
  failure: string | null
  loss: string | null
}

export const clusterNamePattern = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/
export const clusterIdPattern = /^[a-z0-9]{16}$/

const adjectives =
  'amber brave calm clear cool dawn deep early fresh gentle green keen lucky mild quiet rapid silver'.split(' ')
const nouns =
  'anchor bay breeze canal cove current delta dock fjord harbor island lagoon pier reef shore tide wave'.split(' ')

/** Generates a random name; the unique index catches the rare collision. */
export function generateClusterName(): string {
  const pick = (words: string[]) => words[randomInt(words.length)]
  return `${pick(adjectives)}-${pick(nouns)}-${randomInt(1000, 10_000)}`
}

/** The longest retention that an owner may choose, unless the platform keeps all backups for longer. */
const maxRetentionDays = 35

const RetentionDays = orNull(Type.Integer(), {
  description: `How many days back it can be restored: 1 to ${maxRetentionDays}, or to the setting of the platform if that is longer. Null for that setting.`,
})

/** Throws `invalid` unless an owner may choose this retention. Null means that of the platform. */
export function checkRetention(days: number | null | undefined, platformDays: number): number | null {
  const longest = Math.max(maxRetentionDays, platformDays)
  if (days === undefined || days === null) return null
  if (days >= 1 && days <= longest) return days
  throw invalid(`retention_days must be from 1 to ${longest}, or null for the ${platformDays} days of this platform`)
}

export const CreateCluster = Type.Object(
  {
    org_slug: Type.String({ description: 'The organization in which the cluster is created.' }),
    region: Type.Optional(Type.String({ description: 'A region code; the first configured one when omitted.' })),
    plan: Type.String({ description: `One of ${plans.map((plan) => `\`${plan.name}\``).join(', ')}, in any case.` }),
    name: Type.Optional(Type.String({ description: 'Unique in the organization; generated when omitted or blank.' })),
    disk_size_gb: Type.Optional(Type.Integer({ minimum: 1, maximum: 500, description: 'Gigabytes; 10 when omitted.' })),
    pg_major_version: Type.Optional(Type.Enum([...postgresMajors], { description: '`16` when omitted.' })),
    postgis_enabled: Type.Optional(
      Type.Boolean({ description: 'Enables PostGIS in its first database, and allows it in the others.' }),
    ),
    extensions: Type.Optional(
      Type.Array(Type.String({ minLength: 1, maxLength: 63 }), {
        maxItems: 20,
        description:
          'Extensions to create in its first database. If the bundled PostgreSQL lacks one, the cluster uses the PostgreSQL of the distribution.',
      }),
    ),
    pool_mode: Type.Optional(Type.Enum([...poolModes], { description: '`session` when omitted.' })),
    synchronous_archive: Type.Optional(
      Type.Boolean({
        description:
          'Commits wait until the archive has their WAL, so that losing the disk of the cluster loses no commit.',
      }),
    ),
    drill_query: Type.Optional(DrillQuery),
    retention_days: Type.Optional(RetentionDays),
  },
  { examples: [{ org_slug: 'personal', name: 'shop', plan: 'basic', pg_major_version: '17' }] },
)
export type CreateCluster = Static<typeof CreateCluster>

const MaintenanceWindow = orNull(Type.String(), {
  description: `A day and a time in UTC such as \`sun 03:00\`. In the ${maintenanceHours} hours from then on, the cluster is upgraded to the newest installed minor version, if that is newer. Null for never.`,
})

export const UpdateCluster = Type.Object(
  { retention_days: Type.Optional(RetentionDays), maintenance_window: Type.Optional(MaintenanceWindow) },
  { examples: [{ retention_days: 14, maintenance_window: 'sun 03:00' }] },
)
export type UpdateCluster = Static<typeof UpdateCluster>

/** A nullable schema without a union, because the serializer tries the members of a union one after another. */
function orNull<T extends TSchema & { type: string }>(schema: T, options: TSchemaOptions) {
  return Type.Unsafe<Static<T> | null>({ ...schema, title: undefined, ...options, type: [schema.type, 'null'] })
}

const OptionalBytes = (description: string) => orNull(Type.Integer(), { description })
const Time = Type.String({ format: 'date-time' })

const Endpoint = Type.Object({ host: Type.String(), port: Type.Integer() })

const WindowView = Type.Object({ earliest: Time, latest: Time }, { title: 'RecoveryWindow' })

const RestoreProgressView = Type.Object(
  {
    source_cluster_id: Type.String(),
    backup_id: Type.Optional(Type.String()),
    pitr_time: Type.Optional(Type.String({ format: 'date-time' })),
    phase: Type.Enum(['waiting', 'copying', 'replaying', 'finishing', 'done', 'failed']),
    bytes_done: Type.Integer(),
    bytes_total: Type.Union([Type.Integer(), Type.Null()]),
    replayed_until: Type.Union([Time, Type.Null()]),
    verified: Type.Boolean({
      description:
        'Every checksum of the backup was read and found right. Usually so before `ready`; of a copy that shares its blocks with a backup scrubbed within a day, soon after.',
    }),
    error: Type.Union([Type.String(), Type.Null()]),
    loss: Type.Optional(
      Type.String({
        description: 'What an undelete with `accept_loss` could not restore, because the log is damaged.',
      }),
    ),
  },
  { title: 'RestoreProgress', description: 'The source and the progress of a restore.' },
)

export const PostgresCluster = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    organization: OrganizationReference,
    status: Type.Enum([...clusterStatuses]),
    plan: Type.Enum(plans.map((plan) => plan.name)),
    pg_major_version: Type.Enum([...postgresMajors]),
    pg_version: orNull(Type.String(), {
      description: 'The version of its server, such as `17.5`; null until it is placed.',
    }),
    pg_newest_version: orNull(Type.String(), {
      description:
        'The installed version of this major version; if it is newer than `pg_version`, the cluster can be upgraded.',
    }),
    upgrade: Type.Optional(UpgradeView),
    cpu_kind: Type.Enum(['shared', 'performance']),
    cpus: Type.Integer({ description: 'vCPUs per node.' }),
    memory_mb: Type.Integer({ description: 'Memory per node.' }),
    disk_size_gb: Type.Integer({ description: 'Disk of one replica.' }),
    replicas: Type.Integer(),
    region: Type.String(),
    postgis_enabled: Type.Boolean(),
    pool_mode: Type.Enum([...poolModes]),
    retention_days: Type.Integer({ description: 'How many days back it can be restored, once it is that old.' }),
    maintenance_window: orNull(Type.String(), {
      description: 'When minor upgrades begin by themselves, in UTC; null for never.',
    }),
    created_at: Time,
    attached_apps: Type.Array(Type.Object({ name: Type.String() })),
    endpoints: Type.Optional(
      Type.Object(
        { primary: Type.Object({ direct: Endpoint, pooler: Endpoint }) },
        { description: 'Present once the cluster is `ready`.' },
      ),
    ),
    private_endpoints: Type.Optional(
      Type.Object(
        { direct: Endpoint, pooler: Endpoint },
        {
          description:
            'Where machines reach it: those in the `default` network of its organization, and in the networks of attached apps. There once the cluster is `ready`, where there are private networks.',
        },
      ),
    ),
    storage_provisioned_bytes: OptionalBytes('Null until first measured, then hourly.'),
    storage_used_bytes: OptionalBytes('Null until first measured, then hourly.'),
    health: Type.Optional(
      Type.Object(
        { status: Type.Enum(['ok', 'degraded', 'down', 'read_only']), reason: Type.String(), since: Time },
        { description: 'The health of a `ready` cluster.' },
      ),
    ),
    recovery_window: orNull(WindowView, {
      description: 'The newest interval in which every time can be restored; null while there is none.',
    }),
    recovery_windows: Type.Array(WindowView, {
      description: 'All such intervals, oldest first; the times between them cannot be restored.',
    }),
    restore: Type.Optional(RestoreProgressView),
    last_drill: Type.Optional(LastDrillView),
    failure: Type.Optional(Type.String({ description: 'Why a `failed` cluster failed.' })),
    isolation: Type.Optional(
      Type.Object(
        { kind: Type.Literal('none'), gap: Type.String({ description: 'What is lost, and why.' }) },
        { description: 'Present only on a host that cannot isolate clusters from itself and from each other.' },
      ),
    ),
  },
  { title: 'PostgresCluster' },
)

export const PostgresClusterSummary = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    status: Type.Enum([...clusterStatuses]),
    region: Type.String(),
    plan: Type.String(),
    created_at: Time,
    deleted_at: Type.Optional(Time),
    attached_apps: Type.Array(Type.Object({ name: Type.String() })),
  },
  { title: 'PostgresClusterSummary' },
)
