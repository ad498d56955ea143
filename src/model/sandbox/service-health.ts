import { type Static, Type } from 'typebox'
import { parseDuration } from '../duration.ts'
import { badRequest } from '../errors.ts'

/** The health check of a service. */
export interface Health {
  check: { http: { path: string; port: number } } | { command: string[] }
  intervalMs: number
  timeoutMs: number
  /** The number of consecutive failures that make it unhealthy. */
  threshold: number
}

const defaults = { intervalMs: 10_000, timeoutMs: 5_000, threshold: 3 }
const minMs = 100
const maxMs = 3_600_000

const duration = (description: string) => Type.Optional(Type.String({ description, examples: ['10s'] }))

export const HealthBody = Type.Object(
  {
    http: Type.Optional(
      Type.Object(
        {
          path: Type.String({
            pattern: '^/[!-~]*$',
            refusal: 'health.http.path must start with a slash and hold no spaces',
            description: 'The path of a GET request; a status from 200 to 399 is healthy.',
          }),
          port: Type.Optional(
            Type.Integer({ minimum: 1, maximum: 65_535, description: 'The `http_port` when omitted.' }),
          ),
        },
        { additionalProperties: false },
      ),
    ),
    command: Type.Optional(
      Type.Array(Type.String({ pattern: '^[^\\u0000]*$' }), {
        minItems: 1,
        description: 'A program and its arguments; exit code 0 is healthy.',
      }),
    ),
    interval: duration('Between two checks; 10s when omitted.'),
    timeout: duration('A check that takes longer has failed; 5s when omitted.'),
    threshold: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: 100,
        description: 'Consecutive failures until it is unhealthy; 3 when omitted.',
      }),
    ),
  },
  {
    title: 'ServiceHealthCheck',
    description:
      'A service with a check is ready when the check first passes; a service without one as soon as it runs.',
    additionalProperties: false,
  },
)

export function readHealth(body: Static<typeof HealthBody>, httpPort: number | null): Health {
  return {
    check: readCheck(body, httpPort),
    intervalMs: readTime(body.interval, 'interval', defaults.intervalMs),
    timeoutMs: readTime(body.timeout, 'timeout', defaults.timeoutMs),
    threshold: body.threshold ?? defaults.threshold,
  }
}

function readCheck({ http, command }: Static<typeof HealthBody>, httpPort: number | null): Health['check'] {
  if ((http === undefined) === (command === undefined)) throw badRequest('health must have one of http and command')
  if (command) return { command }
  const port = http!.port ?? httpPort
  if (port === null) throw badRequest('health.http.port is required for a service without http_port')
  return { http: { path: http!.path, port } }
}

function readTime(text: string | undefined, field: string, defaultMs: number): number {
  if (text === undefined) return defaultMs
  const time = parseDuration(text)
  if (time === undefined || time < minMs || time > maxMs)
    throw badRequest(`health.${field} must be a duration from 100ms to 1h, such as 10s`)
  return time
}
