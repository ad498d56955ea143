import { type Static, Type } from 'typebox'
import type { Service } from './service.ts'

/** The state of a service in the sandbox's supervisor. Times are milliseconds since the epoch. */
export type ServiceProcess =
  /** Not supervised: the sandbox is not running, or has not loaded the service yet. */
  | { is: 'absent' }
  | {
      is: 'up'
      /** False while it is being stopped. */
      wanted: boolean
      ready: boolean
      pid: number
      /** When the program was started; undefined while it waits for its dependencies. */
      begunAtMs: number | undefined
      restarts: number
      health: { status: 'healthy' | 'unhealthy'; sinceMs: number } | undefined
    }
  | {
      /** `ending`: the process has exited; its cleanup runs or the next start is delayed. */
      is: 'ending' | 'down'
      wanted: boolean
      sinceMs: number
      end: ServiceEnd | undefined
      restarts: number
      nextRestartAtMs: number | undefined
    }

export interface ServiceEnd {
  /** 128 + n after signal n. */
  code: number
  /** Why it could not be started. */
  problem: string | undefined
}

const statuses = ['stopped', 'starting', 'running', 'stopping', 'failed'] as const

export const ServiceState = Type.Object(
  {
    name: Type.String({ description: 'The name of the service.' }),
    status: Type.Enum([...statuses], {
      description:
        '`starting` while it waits for what it needs or for its first healthy check, `failed` after it ended by itself until it is started again, `stopped` after a caller stopped it.',
    }),
    pid: Type.Optional(Type.Integer({ description: 'The pid inside the sandbox; present while a process runs.' })),
    started_at: Type.Optional(Type.String({ description: 'RFC 3339; present while a process runs.' })),
    error: Type.Optional(Type.String({ description: 'Why it failed.' })),
    exit_code: Type.Optional(Type.Integer({ description: 'The last exit code; 128 + n after signal n.' })),
    restart_count: Type.Optional(
      Type.Integer({ description: 'How often it exited by itself since it was defined or started.' }),
    ),
    next_restart_at: Type.Optional(Type.String({ description: 'RFC 3339; when it will be started again.' })),
    health: Type.Optional(
      Type.Object(
        {
          status: Type.Enum(['starting', 'healthy', 'unhealthy']),
          since: Type.Optional(Type.String({ description: 'RFC 3339.' })),
        },
        { description: 'Present for a running service with a health check.' },
      ),
    ),
  },
  { title: 'ServiceState' },
)
export type ServiceState = Static<typeof ServiceState>

/** `boxUp` means that the sandbox should run, so that an absent service is about to start. */
export function stateOf(service: Service, found: ServiceProcess, boxUp: boolean): ServiceState {
  const { name, problem } = service
  const error = problem !== null && { error: problem }
  if (found.is === 'absent') return { name, status: service.wanted && boxUp ? 'starting' : 'stopped', ...error }
  if (found.is === 'up') return upState(service, found)
  const code = found.end && { exit_code: found.end.code }
  // The supervisor also reports exit code 0 for a service that it never started, so 0 is not shown.
  if (!service.wanted || !found.wanted) {
    const rest = service.wanted ? 'starting' : 'stopped'
    return { name, status: found.is === 'ending' ? 'stopping' : rest, ...error, ...(found.end?.code && code) }
  }
  // It has not been started since it was defined.
  if (!found.end) return { name, status: 'starting', ...error }
  return {
    name,
    status: 'failed',
    error: found.end.problem ?? `exited with code ${found.end.code}`,
    ...code,
    ...(found.restarts > 0 && { restart_count: found.restarts }),
    ...(found.nextRestartAtMs !== undefined && { next_restart_at: iso(found.nextRestartAtMs) }),
  }
}

function upState(service: Service, found: Extract<ServiceProcess, { is: 'up' }>): ServiceState {
  const runs = found.ready && found.begunAtMs !== undefined
  const status = service.wanted && found.wanted ? (runs ? 'running' : 'starting') : 'stopping'
  const state: ServiceState = { name: service.name, status }
  if (found.begunAtMs !== undefined) {
    state.pid = found.pid
    state.started_at = iso(found.begunAtMs)
    if (service.health) state.health = healthState(found.health)
  }
  if (found.restarts > 0) state.restart_count = found.restarts
  return state
}

function healthState(health: Extract<ServiceProcess, { is: 'up' }>['health']): NonNullable<ServiceState['health']> {
  return health ? { status: health.status, since: iso(health.sinceMs) } : { status: 'starting' }
}

function iso(timeMs: number): string {
  return new Date(timeMs).toISOString()
}
