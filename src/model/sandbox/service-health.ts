import { type Static, Type } from 'typebox'
import { parseDuration } from '../duration.ts'
import { badRequest } from '../errors.ts'

/** How it is found out whether a service can do its work. */
export interface Health {
  check: { http: { path: string; port: number } } | { command: string[] }
  intervalMs: number
  timeoutMs: number
  /** So many failures in a row make it unhealthy. */
  threshold: number
}

const defaults = { intervalMs: 10_000, timeoutMs: 5_000, threshold: 3 }
const limits = { least: 100, most: 3_600_000 }

const duration = (description: string) => Type.Optional(Type.String({ description, examples: ['10s'] }))

export const HealthBody = Type.Object(
  {
    http: Type.Optional(
      Type.Object(
        {
          path: Type.String({
            pattern: '^/[!-~]*$',
            refusal: 'health.http.path must start with a slash and hold no spaces',
            description: 'Asked for with GET; any answer from 200 to 399 is healthy.',
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
        description: 'Failures in a row until it is unhealthy; 3 when omitted.',
      }),
    ),
  },
  {
    title: 'ServiceHealthCheck',
    description: 'With a check a service is ready when it first passes; without one as soon as it runs.',
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

function readTime(text: string | undefined, field: string, preset: number): number {
  if (text === undefined) return preset
  const time = parseDuration(text)
  if (time === undefined || time < limits.least || time > limits.most)
    throw badRequest(`health.${field} must be a duration from 100ms to 1h, such as 10s`)
  return time
}
