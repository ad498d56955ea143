import { type Static, Type } from 'typebox'
import { defineStates, type State } from '../states.ts'
import type { Micros } from '../time.ts'

/** There is no state for a drill that found a problem: it has done what it is for, and its result says what it found. */
export const drillStates = defineStates({
  queued: { outcomes: { started: 'restoring', failed: 'done' } },
  // The scratch cluster has deadlines of its own.
  restoring: { outcomes: { restored: 'checking', failed: 'cleaning' } },
  checking: {
    outcomes: { passed: 'cleaning', failed: 'cleaning' },
    deadlineMinutes: 720, // reading all of a large cluster takes hours; one that hangs must not keep the others waiting
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

/** How the last drill of a cluster ended, with times as the database prints them in JSON. */
export interface LastDrill {
  at: string
  target: string | null
  seconds: number
  result: string
  answer: string | null
}

/** What the schedule looks at. */
export interface DrillSchedule {
  active: boolean
  /** Seconds since the last drill was asked for or, before the first, since the cluster was. */
  ageSeconds: number
  /** Of the last drill that is done. */
  result: string | null
}

const quietHours = { from: 1, to: 5 }

/** Once per interval, at night if it can wait that long: twice the interval is the longest. */
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
  description: 'SQL that every restore drill runs as `fly-user` in `fly-db`; its answer is kept.',
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

/** Null and blank text count as none. */
export function presentQuery(query: string | null | undefined): string | null {
  return query === undefined || query === null || query.trim() === '' ? null : query
}

const Time = Type.String({ format: 'date-time' })
const OptionalTime = Type.Union([Time, Type.Null()])

const Result = Type.String({ description: '`ok`, or `failed: ` and what was found.' })
const Answer = Type.Optional(Type.String({ description: 'What the drill query answered, cut to 10 kB.' }))

export const LastDrillView = Type.Object(
  {
    at: Time,
    target: OptionalTime,
    seconds: Type.Number(),
    result: Result,
    answer: Answer,
  },
  { title: 'LastDrill', description: 'How the last restore drill ended.' },
)

export const DrillView = Type.Object(
  {
    id: Type.String(),
    status: Type.Enum(Object.keys(drillStates) as (keyof typeof drillStates)[]),
    progress: Type.Optional(Type.String({ description: 'What it is doing, until it is `done`.' })),
    target: Type.Union([Time, Type.Null()], { description: 'The moment that is restored, once it is chosen.' }),
    created_at: Time,
    finished_at: OptionalTime,
    seconds: Type.Union([Type.Number(), Type.Null()]),
    result: Type.Union([Result, Type.Null()]),
    answer: Answer,
  },
  { title: 'PostgresDrill' },
)
