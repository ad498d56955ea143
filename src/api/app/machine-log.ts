import { Type } from 'typebox'
import { type AppLogLine, type LogSource, mostLines, openAppLog, openMachineLog } from '../../live/app/machine-log.ts'
import { ndjson, type Route, route } from '../http/route.ts'
import { appAbsent, ByApp, ByMachine, flag, foreignApp, isSet, machineAbsent } from './machine.ts'

const presetLines = 100

const LogQuery = {
  lines: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: mostLines,
      description: `How many of the last; ${presetLines} when omitted.`,
      refusal: `lines must be from 0 to ${mostLines}`,
    }),
  ),
  follow: flag('Go on with what comes.'),
}

const LogLineView = Type.Object(
  {
    timestamp: Type.String({ format: 'date-time' }),
    message: Type.String(),
    stream: Type.Enum(['stdout', 'stderr', 'platform']),
    instance: Type.String({ description: 'The machine that said it.' }),
    region: Type.String(),
  },
  { title: 'LogLine' },
)

function logView({ at, text, stream, machineId, region }: AppLogLine) {
  return { timestamp: new Date(at).toISOString(), message: text, stream, instance: machineId, region }
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
    summary: 'Read what the machines of an app say',
    description: 'One JSON object a line, the oldest first. While following, also of machines that come later.',
    scope: 'read',
    params: ByApp,
    query: Type.Object({ ...LogQuery, region: Type.Optional(Type.String({ description: 'Only of machines there.' })) }),
    streams: true,
    contentType: 'application/x-ndjson',
    status: 200,
    response: LogLineView,
    errors: { 403: foreignApp, 404: appAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const wish = { lines: query.lines ?? presetLines, follow: isSet(query.follow), region: query.region || null }
      return answer(await openAppLog(ctx, params.app_name, wish))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/machines/{machine_id}/logs',
    id: 'readMachineLog',
    tag: 'Machines',
    summary: 'Read what a machine says',
    description: 'One JSON object a line, the oldest first. Works in every state.',
    scope: 'read',
    machineSelf: true,
    params: ByMachine,
    query: Type.Object(LogQuery),
    streams: true,
    contentType: 'application/x-ndjson',
    status: 200,
    response: LogLineView,
    errors: { 403: foreignApp, 404: machineAbsent },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      const wish = { lines: query.lines ?? presetLines, follow: isSet(query.follow) }
      return answer(await openMachineLog(ctx, params.app_name, params.machine_id, wish))
    },
  }),
]
