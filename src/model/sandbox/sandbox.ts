import { type Static, Type } from 'typebox'
import { slugPattern } from '../account/org.ts'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import type { NetworkPolicy, PrivilegesPolicy, ResourcesPolicy } from './policy.ts'

export const sandboxStates = defineStates({
  cold: { commands: { use: 'running', delete: 'deleting' } },
  running: { commands: { delete: 'deleting' }, keeps: 'up' },
  deleting: { outcomes: { gone: 'deleted' } },
  deleted: {},
})

export interface Sandbox {
  id: string
  orgId: string
  name: string
  /** Null once the sandbox is removed. */
  slot: number | null
  state: State<typeof sandboxStates>
  stateSince: Micros
  urlAuth: 'sprite' | 'public'
  privateAccess: 'admins' | 'org_users'
  labels: string[]
  /** Variables of every command and service. */
  environment: Record<string, string>
  memoryMb: number
  cpus: number
  storageGb: number
  region: string
  networkPolicy: NetworkPolicy
  privileges: PrivilegesPolicy | null
  resources: ResourcesPolicy | null
  /** The checkpoint its filesystem was restored from. */
  sourceId: string | null
  /** The image it is created from; null when it uses the host's programs. */
  image: SandboxImage | null
  /** The size of its writable layers; null before the first measurement. */
  usedBytes: number | null
  measuredAt: Micros | null
  /** Why its box does not start; null while it does. */
  problem: string | null
  /** Whether a restart is in progress, during which requests wait. */
  isHeld: boolean
  createdAt: Micros
  updatedAt: Micros
  lastRunningAt: Micros | null
}

export interface SandboxImage {
  /** The canonical image reference. */
  reference: string
  /** The digest of the pulled image, which stays fixed; null before the pull. */
  digest: string | null
  env: Record<string, string>
  workingDir: string
  /** Why the last pull failed. */
  problem: string | null
}

export interface SandboxDetails extends Sandbox {
  orgSlug: string
}

/** The number of visible sandboxes in each state. */
export interface SandboxCounts {
  running: number
  cold: number
}

export const sandboxNamePattern = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/

/** The working directory of commands and the value of HOME. */
export const sandboxHome = '/home/sprite'

/** The limit per home, because each sandbox has a range of 65,536 uids. */
export const maxSandboxes = 1023

export const defaultSize = { memoryMb: 2048, cpus: 2, storageGb: 10 }

/** Clients enable features by the runtime version; this one enables all that Berth supports. */
export const runtimeVersion = '0.0.1-rc46'

const SandboxStatus = Type.Enum(['cold', 'warm', 'running'], {
  description: '`cold` until its first use, then `running`; `cold` again while it cannot be started, see `problem`.',
})
export type SandboxStatus = Static<typeof SandboxStatus>

/** The status that callers see: a sandbox that should run and cannot does not run. */
export function statusOf<S extends Sandbox['state']>({ state, problem }: { state: S; problem: string | null }) {
  return state === 'running' && problem !== null ? 'cold' : state
}

const UrlSettings = Type.Object({
  auth: Type.Optional(
    Type.Enum(['sprite', 'public'], { description: '`sprite` requires a token, `public` does not.' }),
  ),
  private_access: Type.Optional(
    Type.Enum(['admins', 'org_users'], {
      description:
        'Whose tokens open a URL that is not public: `admins` those of kind `root` and `org`, `org_users` every one that may see the sandbox.',
    }),
  ),
})

const memory = { minimum: 64, maximum: 1_048_576, description: 'Memory in MB; 2048 when omitted.' }
const storage = { minimum: 1, maximum: 65_536, description: 'Storage in GB; 10 when omitted.' }

export const SandboxConfig = Type.Object({
  ram_mb: Type.Optional(Type.Integer(memory)),
  ramMB: Type.Optional(Type.Integer({ ...memory, description: 'Alias for clients that use this spelling.' })),
  cpus: Type.Optional(Type.Number({ minimum: 0.1, maximum: 1024, description: 'Processors; 2 when omitted.' })),
  region: Type.Optional(Type.String({ description: 'A region code of the platform.' })),
  storage_gb: Type.Optional(Type.Integer(storage)),
  storageGB: Type.Optional(Type.Integer({ ...storage, description: 'Alias for clients that use this spelling.' })),
})
export type SandboxConfig = Static<typeof SandboxConfig>

const Image = Type.Optional(
  Type.String({
    description:
      'An OCI image as its files, such as `debian:12` or `registry.example.com/team/app:v1`, pulled with the first use; the programs of the host when omitted. It stays the same as long as the sandbox is there.',
    examples: ['debian:12'],
  }),
)

const Labels = Type.Array(Type.String({ minLength: 1, maxLength: 128 }), {
  maxItems: 64,
  description: 'Free-form labels.',
})

/** The limit for a single variable and for all together; Linux limits one variable to 128 KiB. */
export const maxEnvironmentBytes = 64 * 1024
export const variablePattern = /^[A-Za-z_][A-Za-z0-9_]*$/

const Environment = Type.Record(Type.String(), Type.String(), {
  description: 'Variables of every command and service.',
})

export const CreateSandbox = Type.Object(
  {
    name: Type.String({
      pattern: sandboxNamePattern.source,
      description:
        'Part of its URL, so unique over all organizations; lowercase letters, digits and dashes, at most 63.',
      refusal: 'name must be 1 to 63 lowercase letters, digits and dashes, not starting or ending with a dash',
    }),
    org_slug: Type.Optional(
      Type.String({
        pattern: slugPattern,
        description: "The organization; the token's own when omitted, `personal` for a root token.",
        refusal: 'org_slug is not the slug of an organization',
      }),
    ),
    organization: Type.Optional(
      Type.String({
        pattern: slugPattern,
        description: 'Alias of `org_slug`.',
        refusal: 'organization is not the slug of an organization',
      }),
    ),
    config: Type.Optional(Type.Object({ ...SandboxConfig.properties, image: Image })),
    image: Image,
    environment: Type.Optional(Environment),
    labels: Type.Optional(Labels),
    url_settings: Type.Optional(UrlSettings),
    wait_for_capacity: Type.Optional(Type.Boolean({ description: 'Accepted and ignored: there is no queue.' })),
    runtime: Type.Optional(
      Type.Enum(['default', 'dev'], { description: 'Accepted and ignored: there is one runtime.' }),
    ),
  },
  { examples: [{ name: 'demo' }] },
)
export type CreateSandbox = Static<typeof CreateSandbox>

export const UpdateSandbox = Type.Object({
  url_settings: Type.Optional(UrlSettings),
  labels: Type.Optional(Labels),
  clear_labels: Type.Optional(Type.Boolean({ description: 'Remove all labels.' })),
  environment: Type.Optional(Environment),
  config: Type.Optional(SandboxConfig),
})
export type UpdateSandbox = Static<typeof UpdateSandbox>

const time = { format: 'date-time' }

export const SandboxView = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    organization: Type.String({ description: 'The slug of its organization.' }),
    org_slug: Type.String(),
    status: SandboxStatus,
    problem: Type.Optional(
      Type.String({
        description: 'Why it cannot be started, for example because it has deleted its shell. A restore helps.',
      }),
    ),
    url: Type.String(),
    url_settings: Type.Object({ auth: Type.String(), private_access: Type.String() }),
    config: Type.Object({
      ram_mb: Type.Integer(),
      cpus: Type.Number(),
      region: Type.String(),
      storage_gb: Type.Integer(),
    }),
    storage: Type.Object(
      {
        limit_bytes: Type.Integer(),
        used_bytes: Type.Optional(Type.Integer({ description: 'Disk usage without checkpoints.' })),
        measured_at: Type.Optional(Type.String({ format: 'date-time' })),
        enforced: Type.Boolean({
          description:
            'Whether writing beyond the limit fails. Where the disk cannot do that, nothing stops a sandbox.',
        }),
      },
      { description: 'Measured every five minutes while it runs.' },
    ),
    image: Type.Optional(
      Type.Object(
        {
          reference: Type.String(),
          digest: Type.Optional(
            Type.String({ description: 'The digest of the pulled image; absent before the pull.' }),
          ),
          problem: Type.Optional(Type.String({ description: 'Why the pull failed.' })),
        },
        { description: "The image it is created from; absent when it uses the host's programs." },
      ),
    ),
    environment: Type.Record(Type.String(), Type.String()),
    labels: Type.Array(Type.String()),
    primary_region: Type.String(),
    version: Type.String(),
    environment_version: Type.String(),
    isolation: Type.Object(
      {
        kind: Type.String({ description: '`bubblewrap`, or `none` if the host does not support isolation.' }),
        network: Type.String({ description: '`own`, `host` or `none`.' }),
        gap: Type.Optional(Type.String({ description: 'The missing host capability and its consequence.' })),
      },
      { description: 'The isolation of its programs from the host.' },
    ),
    created_at: Type.String(time),
    updated_at: Type.String(time),
    last_running_at: Type.Optional(Type.String(time)),
  },
  { title: 'Sandbox' },
)

const counts = {
  name: Type.Optional(Type.String({ description: 'The organization; absent when a root token lists all.' })),
  running: Type.Integer(),
  warm: Type.Integer(),
  cold: Type.Integer(),
  running_limit: Type.Integer(),
  warm_limit: Type.Integer(),
}

export const SandboxPage = Type.Object(
  {
    sprites: Type.Array(SandboxView),
    has_more: Type.Boolean(),
    next_continuation_token: Type.Union([Type.String(), Type.Null()], {
      description: 'Send it as `continuation_token` for the next page.',
    }),
    ...counts,
    org: Type.Object(counts, { description: 'The same counts, for clients that read them here.' }),
  },
  { title: 'SandboxPage' },
)

export const SandboxEvent = Type.Object(
  {
    type: Type.Optional(
      Type.Enum(['heartbeat', 'deleted'], { description: 'Absent for a sandbox that was created or has changed.' }),
    ),
    name: Type.Optional(Type.String({ description: 'The sandbox; absent with `heartbeat`.' })),
    status: Type.Optional(Type.String()),
    running_version: Type.Optional(Type.String()),
    last_running_at: Type.Optional(Type.String(time)),
    timestamp: Type.String(time),
    org: Type.Object(counts),
  },
  { title: 'SandboxEvent', description: 'One line of the response.' },
)
