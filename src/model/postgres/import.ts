import { type Static, Type } from 'typebox'
import { type BerthError, conflict, invalid } from '../errors.ts'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'
import { findNameProblem } from './name.ts'
import { Identifier } from './user.ts'

/** The copy is made in a database of its own, which replaces the target only at the end. */
export const importStates = defineStates({
  checking: {
    commands: { cancel: 'canceling' },
    outcomes: { checked: 'dumping', failed: 'failing' },
    deadlineMinutes: 5,
  },
  dumping: {
    commands: { cancel: 'canceling' },
    outcomes: { dumped: 'restoring', failed: 'failing' },
    deadlineMinutes: 720, // a single large table is one step of progress
  },
  restoring: {
    commands: { cancel: 'canceling' },
    outcomes: { copied: 'finishing', subscribed: 'live', failed: 'failing' },
    deadlineMinutes: 720,
  },
  live: { commands: { cutover: 'cutover', cancel: 'canceling' }, outcomes: { failed: 'failing' } },
  cutover: {
    commands: { cancel: 'canceling' },
    outcomes: { caught_up: 'finishing', postponed: 'live', failed: 'failing' },
  },
  finishing: { outcomes: { finished: 'done', failed: 'failing' } },
  failing: { outcomes: { cleaned: 'failed' } },
  canceling: { outcomes: { cleaned: 'canceled' } },
  done: {},
  failed: {},
  canceled: {},
})

export type ImportState = State<typeof importStates>

/** A connection to a PostgreSQL server that a tenant named. */
export interface ImportSource {
  host: string
  port: number
  user: string
  password: string
  database: string
  sslMode: SslMode
}

export interface SourceExtension {
  name: string
  schema: string
}

/** What is known about the source before anything is copied. */
export interface CopyFacts {
  bytes: number
  tables: number
  extensions: SourceExtension[]
  warnings: string[]
}

export interface ImportProgress {
  tablesDone: number
  tableName: string | null
  bytesDone: number
}

export interface Import {
  id: string
  clusterId: string
  state: ImportState
  stateSince: Micros
  progressAt: Micros | null
  createdAt: Micros
  finishedAt: Micros | null
  source: Buffer | null
  sourceName: string
  database: string
  jobs: number
  live: boolean
  addresses: string[] | null
  extensions: SourceExtension[] | null
  warnings: string[]
  tablesDone: number
  tablesTotal: number | null
  bytesDone: number
  bytesTotal: number | null
  tableName: string | null
  lagBytes: number | null
  lagSeconds: number | null
  transaction: string | null
  failure: string | null
}

const sslModes = ['disable', 'prefer', 'require', 'verify-ca', 'verify-full'] as const
export type SslMode = (typeof sslModes)[number]

const defaultPort = 5432
const maxUrlLength = 4_096
const maxJobs = 8

/** Passwords of files that libpq reads have one line each. */
const controlCharacter = /\p{Cc}/u

/** Throws `invalid`, without repeating the URL, which contains a password. */
export function parseImportUrl(text: string): ImportSource {
  const url = text.length <= maxUrlLength && URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^postgres(ql)?:$/.test(url.protocol)) {
    throw invalid('url must look like postgresql://user:password@host:5432/database')
  }
  const source = {
    host: url.hostname.replace(/^\[|\]$/g, ''),
    port: url.port === '' ? defaultPort : Number(url.port),
    user: decode(url.username, 'user'),
    password: decode(url.password, 'password'),
    database: decode(url.pathname.slice(1), 'database'),
    sslMode: readSslMode(url.searchParams),
  }
  if (!/^[a-z0-9._-]+$|^[0-9a-f:.]+$/i.test(source.host)) throw invalid('url must name a single host')
  if (source.port === 0) throw invalid('the port in url must be between 1 and 65535')
  for (const field of ['user', 'database'] as const) {
    const problem = findNameProblem(source[field])
    if (problem) throw invalid(`the ${field} in url is not valid: ${problem}`)
  }
  return source
}

function decode(text: string, what: string): string {
  let value: string
  try {
    value = decodeURIComponent(text)
  } catch {
    throw invalid(`the ${what} in url is not percent-encoded correctly`)
  }
  if (controlCharacter.test(value)) throw invalid(`the ${what} in url cannot contain control characters`)
  return value
}

function readSslMode(parameters: URLSearchParams): SslMode {
  const unknown = [...parameters.keys()].find((name) => name !== 'sslmode')
  if (unknown === 'sslcert' || unknown === 'sslkey')
    throw invalid('imports cannot present a client certificate: the user in url has to log in with a password only')
  if (unknown !== undefined) throw invalid(`url has the parameter ${unknown.slice(0, 50)}; only sslmode is supported`)
  const mode = parameters.get('sslmode') ?? 'prefer'
  const known = sslModes.find((each) => each === (mode === 'allow' ? 'prefer' : mode))
  if (known === undefined) throw invalid(`sslmode must be one of ${sslModes.join(', ')}`)
  return known
}

export function formatSource({ user, host, port, database }: ImportSource): string {
  const name = host.includes(':') ? `[${host}]` : host
  return `postgresql://${encodeURIComponent(user)}@${name}:${port}/${encodeURIComponent(database)}`
}

/** The names of what a live import creates at the source. */
export function replicationName(importId: string): string {
  return `berth_import_${importId}`
}

/** What the owner of a source has to run if the platform could not. */
export function cleanupStatements(importId: string): string {
  const name = replicationName(importId)
  return `select pg_drop_replication_slot('${name}'); drop publication if exists ${name}`
}

export const CreateImport = Type.Object(
  {
    url: Type.String({
      description:
        'The source: `postgresql://user:password@host:port/database?sslmode=require`. The password is stored encrypted until the import ends, and never shown.',
      refusal: 'url must look like postgresql://user:password@host:5432/database',
    }),
    database: Type.Optional(
      Identifier('database', 'The database of the cluster to replace, which must be empty; `fly-db` when omitted.'),
    ),
    jobs: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: maxJobs,
        description: 'Tables to copy at a time; 4 when omitted.',
        refusal: `jobs must be a number from 1 to ${maxJobs}`,
      }),
    ),
    live: Type.Optional(
      Type.Boolean({
        description: 'Keep the copy in sync by logical replication until the cut-over.',
        refusal: 'live must be true or false',
      }),
    ),
  },
  { examples: [{ url: 'postgresql://shop:secret@db.example.com/shop?sslmode=require', live: true }] },
)
export type CreateImport = Static<typeof CreateImport>

const Time = Type.String({ format: 'date-time' })
const OptionalInteger = (description: string) => Type.Union([Type.Integer(), Type.Null()], { description })

export const ImportView = Type.Object(
  {
    id: Type.String(),
    status: Type.Enum(Object.keys(importStates) as ImportState[]),
    progress: Type.Optional(Type.String({ description: 'What the import is doing or waiting for.' })),
    source: Type.String({ description: 'The URL of the source without its password.' }),
    database: Type.String(),
    live: Type.Boolean(),
    jobs: Type.Integer(),
    tables_done: Type.Integer({ description: 'In the current phase, `dumping` or `restoring`.' }),
    tables_total: OptionalInteger('Null until the source was checked.'),
    bytes_done: Type.Integer({
      description: 'The size of the dump, which is compressed, or of the restored database.',
    }),
    bytes_total: OptionalInteger('The size of the source database.'),
    current_table: Type.Union([Type.String(), Type.Null()]),
    lag_bytes: OptionalInteger('WAL of the source that a live copy has not confirmed yet.'),
    lag_seconds: Type.Union([Type.Number(), Type.Null()], {
      description: 'How long a live copy is behind the source.',
    }),
    warnings: Type.Array(Type.String(), { description: 'What was not copied, and what to do about it.' }),
    created_at: Time,
    finished_at: Type.Union([Time, Type.Null()]),
    failure: Type.Optional(Type.String({ description: 'Why a `failed` import failed.' })),
  },
  { title: 'PostgresImport' },
)

/** The copy of an import does not survive a restart of the cluster, and a copy of the cluster would have half of it. */
export function importInProgress(): BerthError {
  return conflict('an import is in progress: the cluster can be upgraded once it has ended')
}
