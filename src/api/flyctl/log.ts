import { Type } from 'typebox'
import { checked } from '../../actions/context.ts'
import { type AppLogLine, readLogPage } from '../../live/app/machine-log.ts'
import { invalid } from '../../model/errors.ts'
import { foreignApp, noApp } from '../app/error-text.ts'
import { ByApp } from '../app/params.ts'
import type { Route } from '../http/route.ts'
import { internalRoute } from './route.ts'

const LogEntry = Type.Object(
  {
    id: Type.String(),
    type: Type.String(),
    attributes: Type.Object({
      timestamp: Type.String({ format: 'date-time' }),
      message: Type.String(),
      level: Type.String(),
      instance: Type.String({ description: 'The machine that wrote the line.' }),
      region: Type.String(),
      meta: Type.Object({
        instance: Type.String(),
        region: Type.String(),
        event: Type.Object({ provider: Type.String({ description: '`app`, or `runner` for the platform.' }) }),
      }),
    }),
  },
  { title: 'FlyctlLogEntry' },
)

export const flyctlLogRoutes: Route[] = [
  internalRoute({
    method: 'GET',
    path: '/api/v1/apps/{app_name}/logs',
    id: 'flyctlReadLog',
    summary: 'Read the log of the machines of an app in pages',
    description: 'The first page has the most recent lines; `next_token` of a page returns the lines that followed.',
    scope: 'read',
    params: ByApp,
    query: Type.Object({
      next_token: Type.Optional(
        Type.String({ description: '`next_token` of the previous page; a time in nanoseconds since the epoch.' }),
      ),
      instance: Type.Optional(Type.String({ description: 'Only lines of this machine.' })),
      region: Type.Optional(Type.String({ description: 'Only lines of machines in this region.' })),
    }),
    status: 200,
    response: Type.Object({ data: Type.Array(LogEntry), meta: Type.Object({ next_token: Type.String() }) }),
    errors: { 403: foreignApp, 404: noApp, 422: 'A parameter is not valid.' },
    run: async ({ ctx, params, query }) => {
      const token = query.next_token ?? ''
      const lines = await readLogPage(ctx, params.app_name, {
        afterMs: await checked(ctx, () => readToken(token)),
        instance: query.instance || null,
        region: query.region || null,
      })
      const last = lines.at(-1)
      return { data: lines.map(entryView), meta: { next_token: last ? String(nanosOf(last.at)) : token } }
    },
  }),
]

function readToken(token: string): number | null {
  if (token === '') return null
  if (!/^\d{1,19}$/.test(token)) throw invalid('next_token is not valid')
  const nanos = BigInt(token)
  return Number(nanos / 1_000_000n) + Number(nanos % 1_000_000n) / 1e6
}

/** Exact inverse of `readToken`; a multiplication of numbers of this size would lose digits. */
function nanosOf(ms: number): bigint {
  const whole = Math.floor(ms)
  return BigInt(whole) * 1_000_000n + BigInt(Math.round((ms - whole) * 1e6))
}

/** flyctl stops to wait for the log of a release command at this wording. */
function platformMessage(text: string): string {
  return text.replace(/^exited with code (\d+)$/, 'Main child exited normally with code: $1')
}

function entryView({ at, text, stream, machineId, region, container }: AppLogLine) {
  // Only the exit of the machine ends a release command.
  const message = stream === 'platform' && container === undefined ? platformMessage(text) : text
  return {
    id: `${machineId}-${nanosOf(at)}`,
    type: 'log',
    attributes: {
      timestamp: new Date(at).toISOString(),
      message: container === undefined ? message : `${container}: ${message}`,
      level: 'info',
      instance: machineId,
      region,
      meta: { instance: machineId, region, event: { provider: stream === 'platform' ? 'runner' : 'app' } },
    },
  }
}
