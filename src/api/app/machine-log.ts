import { Type } from 'typebox'
import { type AppLogLine, type LogSource, maxLogLines, openAppLog, openMachineLog } from '../../live/app/machine-log.ts'
import { ndjson, type Route, route } from '../http/route.ts'
import { foreignApp, noApp, noMachine } from './error-text.ts'
import { flag, isSet } from './machine.ts'
import { ByApp, ByMachine } from './params.ts'

const defaultLines = 100

const LogQuery = {
  lines: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: maxLogLines,
      description: `The number of most recent lines; ${defaultLines} when omitted.`,
      refusal: `lines must be from 0 to ${maxLogLines}`,
    }),
  ),
  follow: flag('Keep the response open and send new lines.'),
}

const LogLineView = Type.Object(
  {
    timestamp: Type.String({ format: 'date-time' }),
    message: Type.String(),
    stream: Type.Enum(['stdout', 'stderr', 'platform']),
    instance: Type.String({ description: 'The machine that wrote the line.' }),
    region: Type.String(),
    container: Type.Optional(Type.String({ description: 'The container that wrote the line.', examples: ['web'] })),
  },
  { title: 'LogLine' },
)

function logView({ at, text, stream, machineId, region, container }: AppLogLine) {
  const place = { instance: machineId, region, ...(container !== undefined && { container }) }
  return { timestamp: new Date(at).toISOString(), message: text, stream, ...place }
}

function answer(source: LogSource) {
  return ndjson((send, gone) => source((lines) => send(...lines.map(logView)), gone))
}

export const machineLogRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/logs',
    id: 'readAppLog',
    tag: 'Apps',
    summary: 'Read the log of the machines of an app',
    description: 'One JSON object per line, oldest first. Following includes machines that are created later.',
    scope: 'read',
    params: ByApp,
    query: Type.Object({
      ...LogQuery,
      region: Type.Optional(Type.String({ description: 'Only lines of machines in this region.' })),
    }),
    streams: true,
    contentType: 'application/x-ndjson',
    status: 200,
    response: LogLineView,
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const wish = { lines: query.lines ?? defaultLines, follow: isSet(query.follow), region: query.region || null }
      return answer(await openAppLog(ctx, params.app_name, wish))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines/{machine_id}/logs',
    id: 'readMachineLog',
    tag: 'Machines',
    summary: 'Read the log of a machine',
    description: 'One JSON object per line, oldest first. Works in every state.',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object(LogQuery),
    streams: true,
    contentType: 'application/x-ndjson',
    status: 200,
    response: LogLineView,
    errors: { 403: foreignApp, 404: noMachine },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const wish = { lines: query.lines ?? defaultLines, follow: isSet(query.follow) }
      return answer(await openMachineLog(ctx, params.app_name, params.machine_id, wish))
    },
  }),
]
