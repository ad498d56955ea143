import { type Static, Type } from 'typebox'

/** What the job of a major upgrade does, in this order. */
export const upgradeStages = ['checking', 'upgrading', 'analyzing', 'verifying'] as const
export type UpgradeStage = (typeof upgradeStages)[number]

/**
 * A minor upgrade is planned, restarts the cluster and is done, or goes back and has failed. A major upgrade restores a
 * copy, runs the stages of its job and finishes the new cluster.
 */
export const upgradePhases = [
  'planned',
  'restarting',
  'reverting',
  'restoring',
  ...upgradeStages,
  'finishing',
  'done',
  'failed',
] as const
export type UpgradePhase = (typeof upgradePhases)[number]

/** Compares versions such as 17.5 and 17.10. */
export function isNewerVersion(version: string, than: string): boolean {
  const [a, b] = [version, than].map((text) => text.split('.').map((part) => Number.parseInt(part, 10) || 0))
  for (let i = 0; i < Math.max(a!.length, b!.length); i++) {
    const difference = (a![i] ?? 0) - (b![i] ?? 0)
    if (difference !== 0) return difference > 0
  }
  return false
}

/** The note in the health of a cluster that could be upgraded. */
export function outdatedNote(id: string, running: string, newest: string): string {
  return `PostgreSQL ${running} is running and ${newest} is installed: run berth postgres upgrade ${id}`
}

const Blank = (description: string) => Type.Optional(Type.Union([Type.String(), Type.Null()], { description }))

export const UpgradeRequest = Type.Object(
  {
    at: Blank(
      'RFC 3339 timestamp with an explicit UTC offset, at which the minor upgrade begins; at once when omitted. Not together with `pg_major_version`.',
    ),
    pg_major_version: Blank(
      'A newer major version: creates a new cluster with a copy of the data. When omitted, the cluster itself is restarted with the newest installed minor version.',
    ),
    name: Blank('Name of the new cluster, only with `pg_major_version`; generated when omitted or blank.'),
  },
  { title: 'UpgradeRequest', examples: [{ at: '2026-01-01T03:00:00Z' }] },
)
export type UpgradeRequest = Static<typeof UpgradeRequest>

/** The last upgrade of a cluster, with times in the format of PostgreSQL's JSON. */
export interface LastUpgrade {
  kind: 'minor' | 'major'
  phase: UpgradePhase
  from: string
  to: string
  planned_at: string | null
  started_at: string | null
  finished_at: string | null
  error: string | null
}

const OptionalTime = Type.Union([Type.String({ format: 'date-time' }), Type.Null()])

export const UpgradeView = Type.Object(
  {
    kind: Type.Enum(['minor', 'major']),
    phase: Type.Enum([...upgradePhases]),
    from: Type.String({ description: 'The version before it.' }),
    to: Type.String({ description: 'The version after it; of a major upgrade only the major version at first.' }),
    planned_at: Type.Union([Type.String({ format: 'date-time' }), Type.Null()], {
      description: 'When a planned minor upgrade begins.',
    }),
    started_at: OptionalTime,
    finished_at: OptionalTime,
    error: Type.Union([Type.String(), Type.Null()], {
      description: 'Why it failed. A cluster whose minor upgrade failed runs the version of before.',
    }),
  },
  { title: 'PostgresUpgrade', description: 'The planned, current or last upgrade of PostgreSQL.' },
)
