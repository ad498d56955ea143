import { type Static, Type } from 'typebox'
import { parseDuration } from '../duration.ts'
import { badRequest } from '../errors.ts'
import type { Micros } from '../time.ts'

/** Keeps its sandbox awake until it is removed or expires. */
export interface Task {
  name: string
  startedAt: Micros
  expiresAt: Micros
}

export const taskNamePattern = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$/

export const maxTasks = 100

const maxExpireMs = 3_600_000

const name = Type.String({
  pattern: taskNamePattern.source,
  description: 'Letters, digits and `_ . : -`, at most 100.',
  refusal:
    'name must be 1 to 100 letters, digits, dots, colons, dashes and underscores, beginning with a letter or a digit',
})
const expire = Type.Union([Type.Number(), Type.String()], {
  description: 'How long from now, in seconds or as a duration such as `30m`; at most an hour.',
  examples: ['30m', 90],
})

export const CreateTask = Type.Object({ name, expire }, { title: 'CreateTask' })
export const ChangeTask = Type.Object({ expire }, { title: 'ChangeTask' })
export type Expire = Static<typeof expire>

export const TaskView = Type.Object(
  {
    name: Type.String(),
    started_at: Type.String({ format: 'date-time' }),
    expires_at: Type.String({ format: 'date-time' }),
  },
  { title: 'Task' },
)

/** Returns mseconds. */
export function readExpire(value: Expire): number {
  const seconds = typeof value === 'number' || /^\d+(\.\d+)?$/.test(value) ? Number(value) : undefined
  const ms = seconds === undefined ? parseDuration(String(value)) : seconds * 1000
  if (ms === undefined) throw badRequest('expire must be a number of seconds or a duration such as 30m')
  if (!(ms > 0 && ms <= maxExpireMs)) throw badRequest('expire must be more than zero and at most 1h')
  return ms
}
