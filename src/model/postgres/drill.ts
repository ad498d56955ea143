import { type Static, Type } from 'typebox'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'

/** A drill that found a problem is `done` like any other; the problem is in its result. */
export const drillStates = defineStates({
  queued: { outcomes: { started: 'restoring', failed: 'done' } },
  // The scratch cluster has its own deadlines.
  restoring: { outcomes: { restored: 'checking', failed: 'cleaning' } },
  checking: {
    outcomes: { passed: 'cleaning', failed: 'cleaning' },
    deadlineMinutes: 720, // reading a large cluster takes hours, but a stuck drill must not block the others
  },
  cleaning: { outcomes: { cleaned: 'done' } },
  done: {},
})

export interface Drill {
  id: string
  clusterId: string
  state: State<typeof drillStates>
  stateSince: Micros
  progressAt: Micros | null
  createdAt: Micros
  startedAt: Micros | null
  target: Micros | null
  scratchId: string | null
  finishedAt: Micros | null
  seconds: number | null
  result: string | null
  answer: string | null
}

export const passed = 'ok'

/** The result of a cluster's last drill, with times in the format of PostgreSQL's JSON. */
export interface LastDrill {
  at: string
  target: string | null
  seconds: number
  result: string
  answer: string | null
}

export interface DrillSchedule {
  active: boolean
  /** Seconds since the last drill, or since the cluster was created. */
  ageSeconds: number
  /** The result of the last finished drill. */
  result: string | null
}

const quietHours = { from: 1, to: 5 }

/** A drill is due once per interval, but waits for the quiet hours up to twice the interval. */
export function isDrillDue({ active, ageSeconds }: DrillSchedule, intervalSeconds: number, now: Date): boolean {
  if (active || ageSeconds < intervalSeconds) return false
  const hour = now.getUTCHours()
  return (hour >= quietHours.from && hour < quietHours.to) || ageSeconds >= 2 * intervalSeconds
}

const drillQueryText = {
  maxLength: 10_000,
  pattern: '^[^\\u0000]*$',
  refusal: 'drill_query must be at most 10000 characters, none of them NUL',
}

export const DrillQuery = Type.String({
  ...drillQueryText,
  description: 'SQL that every restore drill runs as `fly-user` in `fly-db`; its result is stored.',
})

export const CreateDrill = Type.Object({
  drill_query: Type.Optional(
    Type.Union([Type.String(drillQueryText), Type.Null()], {
      description:
        'SQL to run as `fly-user` in `fly-db`, here and in later drills; null or blank for none, the one of before when omitted.',
    }),
  ),
})
export type CreateDrill = Static<typeof CreateDrill>

/** Blank text counts as none. */
export function presentQuery(query: string | null | undefined): string | null {
  return query === undefined || query === null || query.trim() === '' ? null : query
}

const Time = Type.String({ format: 'date-time' })
const OptionalTime = Type.Union([Time, Type.Null()])

const Result = Type.String({ description: '`ok`, or `failed: ` and the reason.' })
const Answer = Type.Optional(Type.String({ description: 'The result of the drill query, truncated to 10 kB.' }))

export const LastDrillView = Type.Object(
  {
    at: Time,
    target: OptionalTime,
    seconds: Type.Number(),
    result: Result,
    answer: Answer,
  },
  { title: 'LastDrill', description: 'The result of the last restore drill.' },
)

export const DrillView = Type.Object(
  {
    id: Type.String(),
    status: Type.Enum(Object.keys(drillStates) as (keyof typeof drillStates)[]),
    progress: Type.Optional(Type.String({ description: 'The current step, until it is `done`.' })),
    target: Type.Union([Time, Type.Null()], { description: 'The time that is restored, once it is chosen.' }),
    created_at: Time,
    finished_at: OptionalTime,
    seconds: Type.Union([Type.Number(), Type.Null()]),
    result: Type.Union([Result, Type.Null()]),
    answer: Answer,
  },
  { title: 'PostgresDrill' },
)
