import { Type } from 'typebox'
import { getService, listServicesOf, type ServiceDetails, signalService } from '../../live/sandbox/service.ts'
import {
  changeService,
  deleteService,
  restartService,
  startService,
  stopService,
  streamServiceLog,
} from '../../live/sandbox/service-change.ts'
import type { ServiceEventStream } from '../../live/sandbox/service-task.ts'
import { durationOr } from '../../model/duration.ts'
import { PutService } from '../../model/sandbox/service.ts'
import { HealthBody } from '../../model/sandbox/service-health.ts'
import { ServiceState } from '../../model/sandbox/service-state.ts'
import { readOnly } from '../error-text.ts'
import { ndjson, type Route, route } from '../http/route.ts'

const Service = Type.Object(
  {
    name: Type.String(),
    cmd: Type.String(),
    args: Type.Array(Type.String()),
    needs: Type.Array(Type.String(), { description: 'Services that must be ready before it is started.' }),
    http_port: Type.Optional(Type.Integer({ description: 'The URL of the sandbox is routed to this port.' })),
    env: Type.Optional(Type.Record(Type.String(), Type.String())),
    dir: Type.Optional(Type.String()),
    health: Type.Optional(HealthBody),
    state: ServiceState,
  },
  { title: 'Service' },
)

const Event = Type.Object(
  {
    type: Type.Enum(['started', 'stdout', 'stderr', 'exit', 'error', 'stopping', 'stopped', 'gap', 'complete'], {
      description: '`complete` is always the last event.',
    }),
    timestamp: Type.Integer({ description: 'Milliseconds since the epoch.' }),
    data: Type.Optional(Type.String({ description: 'An output line with its line break, or an error message.' })),
    exit_code: Type.Optional(
      Type.Integer({ description: 'Present with `exit` and `stopped`; 128 + n after signal n.' }),
    ),
    log_files: Type.Optional(
      Type.Object(
        { stdout: Type.String(), stderr: Type.String(), combined: Type.String() },
        { description: 'Present with `complete`: the log files in the sandbox.' },
      ),
    ),
  },
  { title: 'ServiceEvent', description: 'One line of the response.' },
)

const sandboxName = Type.String({ description: 'The name of the sandbox.' })
const BySandbox = Type.Object({ name: sandboxName })
const ByService = Type.Object({
  name: sandboxName,
  service_name: Type.String({ description: 'The name of the service.' }),
})

const duration = (description: string) => Type.Optional(Type.String({ description, examples: ['5s', '1m30s'] }))
const Watched = Type.Object({
  duration: duration('How long the response follows the output of the service; 5s when omitted or not a duration.'),
})

const path = '/v1/sandboxes/{name}/services'
const onePath = `${path}/{service_name}`
const shared = { tag: 'Services', wrongTypeStatus: 400 } as const
const noService = 'The sandbox or the service does not exist.'
const defaultWatchMs = 5_000
const defaultStopMs = 10_000

/** Operations that stream the events of a service. */
const streaming = {
  params: ByService,
  status: 200,
  response: Event,
  streams: true,
  contentType: 'application/x-ndjson',
} as const
const acting = { ...shared, ...streaming, method: 'POST', scope: 'write' } as const

const streamEvents = (source: ServiceEventStream) =>
  ndjson((send, disconnected) => source((events) => send(...events), disconnected))

export const serviceRoutes: Route[] = [
  route({
    ...shared,
    method: 'GET',
    path,
    id: 'listServices',
    summary: 'List the services of a sandbox',
    scope: 'read',
    params: BySandbox,
    status: 200,
    response: Type.Array(Service),
    errors: { 404: 'The sandbox does not exist.' },
    run: async ({ ctx, params }) => (await listServicesOf(ctx, params.name)).map(serviceView),
  }),
  route({
    ...shared,
    method: 'POST',
    path: `${path}/signal`,
    id: 'signalService',
    summary: 'Send a signal to a service',
    description: 'If the service exits, it is restarted as after a crash.',
    scope: 'write',
    action: 'control',
    params: BySandbox,
    body: Type.Object(
      {
        name: Type.String({ description: 'The name of the service.' }),
        signal: Type.Union([Type.String(), Type.Integer()], {
          description: '`TERM`, `SIGTERM` or 15; the case does not matter.',
          examples: ['SIGHUP'],
        }),
      },
      { title: 'SignalService', additionalProperties: false },
    ),
    status: 204,
    errors: { 400: 'The signal does not exist.', 403: readOnly, 404: noService, 409: 'The service is not running.' },
    run: async ({ ctx, params, body }) => {
      await signalService(ctx, params.name, body)
    },
  }),
  route({
    ...shared,
    method: 'GET',
    path: onePath,
    id: 'getService',
    summary: 'Show a service',
    description: 'Returns its definition and its current state.',
    scope: 'read',
    params: ByService,
    status: 200,
    response: Service,
    errors: { 404: noService },
    run: async ({ ctx, params }) => serviceView(await getService(ctx, params.name, params.service_name)),
  }),
  route({
    ...shared,
    ...streaming,
    method: 'PUT',
    path: onePath,
    id: 'putService',
    summary: 'Define a service and start it',
    description:
      'A changed definition restarts a running service. An unchanged definition has no effect; the response is then one line with a `message`.',
    scope: 'write',
    query: Type.Object({ ...Watched.properties, timeout: duration('Alias of `duration`.') }),
    body: PutService,
    errors: {
      400: 'The name or a field is not valid or not known, or `needs` names an unknown service or is circular.',
      403: readOnly,
      404: 'The sandbox does not exist.',
      409: 'Another service already has an HTTP port, or there are too many services.',
    },
    run: async ({ ctx, params, query, body }) => {
      const { name, service_name: service } = params
      const watchMs = durationOr(query.duration ?? query.timeout, defaultWatchMs)
      const events = await changeService(ctx, name, service, body, watchMs)
      if (events) return streamEvents(events)
      const again = `POST /v1/sandboxes/${name}/services/${service}/restart`
      const message = `Service already running with that command, use ${again} to restart it`
      return ndjson(async (send) => send({ message }))
    },
  }),
  route({
    ...shared,
    method: 'DELETE',
    path: onePath,
    id: 'deleteService',
    summary: 'Stop and delete a service',
    description: 'Its log is deleted as well.',
    scope: 'write',
    params: ByService,
    status: 204,
    errors: { 403: readOnly, 404: noService, 409: 'Another service needs it.' },
    run: async ({ ctx, params }) => deleteService(ctx, params.name, params.service_name),
  }),
  route({
    ...acting,
    path: `${onePath}/start`,
    id: 'startService',
    action: 'control',
    summary: 'Start a service',
    description: 'Starts the services it needs first, and resets its restart counter.',
    query: Watched,
    errors: { 403: readOnly, 404: noService, 409: 'The service is already starting.' },
    run: async ({ ctx, params, query }) =>
      streamEvents(
        await startService(ctx, params.name, params.service_name, durationOr(query.duration, defaultWatchMs)),
      ),
  }),
  route({
    ...acting,
    path: `${onePath}/stop`,
    id: 'stopService',
    action: 'control',
    summary: 'Stop a service',
    description: 'It stays stopped until it is started, even after a restart of the sandbox.',
    query: Type.Object({
      timeout: duration('The time between SIGTERM and SIGKILL; 10s when omitted or not a duration.'),
    }),
    errors: {
      403: readOnly,
      404: noService,
      409: 'The service is not running, or a service that is not stopped needs it.',
    },
    run: async ({ ctx, params, query }) =>
      streamEvents(await stopService(ctx, params.name, params.service_name, durationOr(query.timeout, defaultStopMs))),
  }),
  route({
    ...acting,
    path: `${onePath}/restart`,
    id: 'restartService',
    action: 'control',
    summary: 'Restart a service',
    query: Watched,
    errors: { 403: readOnly, 404: noService },
    run: async ({ ctx, params, query }) =>
      streamEvents(
        await restartService(ctx, params.name, params.service_name, durationOr(query.duration, defaultWatchMs)),
      ),
  }),
  route({
    ...shared,
    ...streaming,
    method: 'GET',
    path: `${onePath}/logs`,
    id: 'getServiceLog',
    summary: 'Show the log of a service',
    description: 'Both output streams in the order of time. The last 32 MiB of each are kept.',
    scope: 'read',
    query: Type.Object({
      lines: Type.Optional(Type.Integer({ description: 'The number of most recent lines; all when omitted.' })),
      duration: duration('How long to follow new output; not at all when omitted or not a duration.'),
    }),
    errors: { 404: noService },
    run: async ({ ctx, params, query }) => {
      const lines = query.lines !== undefined && query.lines > 0 ? query.lines : undefined
      return streamEvents(
        await streamServiceLog(ctx, params.name, params.service_name, lines, durationOr(query.duration, 0)),
      )
    },
  }),
]

function serviceView(service: ServiceDetails) {
  return {
    name: service.name,
    cmd: service.cmd,
    args: service.args,
    needs: service.needs,
    ...(service.httpPort !== null && { http_port: service.httpPort }),
    ...(Object.keys(service.env).length > 0 && { env: service.env }),
    ...(service.dir !== null && { dir: service.dir }),
    ...(service.health && { health: healthView(service.health) }),
    state: service.state,
  }
}

function healthView({ check, intervalMs, timeoutMs, threshold }: NonNullable<ServiceDetails['health']>) {
  return { ...check, interval: `${intervalMs}ms`, timeout: `${timeoutMs}ms`, threshold }
}
