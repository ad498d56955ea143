import { Type } from 'typebox'
import { getService, listServicesOf, type ServiceDetails, signalService } from '../../live/sandbox/service.ts'
import {
  changeService,
  deleteService,
  restartService,
  startService,
  stopService,
  tellLogOf,
} from '../../live/sandbox/service-change.ts'
import type { Telling } from '../../live/sandbox/service-task.ts'
import { durationOr } from '../../model/duration.ts'
import { PutService } from '../../model/sandbox/service.ts'
import { HealthBody } from '../../model/sandbox/service-health.ts'
import { ServiceState } from '../../model/sandbox/service-state.ts'
import { ndjson, type Route, route } from '../http/route.ts'

const Service = Type.Object(
  {
    name: Type.String(),
    cmd: Type.String(),
    args: Type.Array(Type.String()),
    needs: Type.Array(Type.String(), { description: 'Services that are started, and ready, before it.' }),
    http_port: Type.Optional(Type.Integer({ description: 'The URL of the sandbox leads to this port.' })),
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
      description: '`complete` is always the last.',
    }),
    timestamp: Type.Integer({ description: 'Milliseconds since the epoch.' }),
    data: Type.Optional(Type.String({ description: 'A line with its end, or what went wrong.' })),
    exit_code: Type.Optional(Type.Integer({ description: 'Of `exit` and `stopped`; 128 + n after signal n.' })),
    log_files: Type.Optional(
      Type.Object(
        { stdout: Type.String(), stderr: Type.String(), combined: Type.String() },
        { description: 'Of `complete`: where the output lies inside the sandbox.' },
      ),
    ),
  },
  { title: 'ServiceEvent', description: 'One a line (`application/x-ndjson`).' },
)

const sandboxName = Type.String({ description: 'The name of the sandbox.' })
const BySandbox = Type.Object({ name: sandboxName })
const ByService = Type.Object({
  name: sandboxName,
  service_name: Type.String({ description: 'The name of the service.' }),
})

const duration = (description: string) => Type.Optional(Type.String({ description, examples: ['5s', '1m30s'] }))
const Watched = Type.Object({
  duration: duration('How long the answer follows what the service prints; 5s when omitted or not a duration.'),
})

const path = '/v1/sandboxes/{name}/services'
const onePath = `${path}/{service_name}`
const shared = { tag: 'Services', wrongTypeStatus: 400 } as const
const noService = 'The sandbox or the service does not exist.'
const readOnly = 'The token may only read.'
const defaultWatchMs = 5_000
const defaultStopMs = 10_000

/** What is told of a service while it happens. */
const streaming = { params: ByService, status: 200, response: Event, streams: true } as const
const acting = { ...shared, ...streaming, method: 'POST', scope: 'write' } as const

const tellAll = (telling: Telling) => ndjson((send, gone) => telling((events) => send(...events), gone))

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
    description: 'A service that ends because of it is started again, as after a crash.',
    scope: 'write',
    params: BySandbox,
    body: Type.Object(
      {
        name: Type.String({ description: 'The service.' }),
        signal: Type.Union([Type.String(), Type.Integer()], {
          description: '`TERM`, `SIGTERM` or 15, in any case.',
          examples: ['SIGHUP'],
        }),
      },
      { title: 'SignalService', additionalProperties: false },
    ),
    status: 204,
    errors: { 400: 'There is no such signal.', 403: readOnly, 404: noService, 409: 'The service does not run.' },
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
    description: 'Its definition and what its supervisor says of it now.',
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
      'Another definition of a running service stops it and starts the new one. The same definition again changes nothing: the answer is then one line with a `message`.',
    scope: 'write',
    query: Type.Object({ ...Watched.properties, timeout: duration('Another name of `duration`.') }),
    body: PutService,
    errors: {
      400: 'The name or a field is not valid or not known, or `needs` names something that is not there or leads in a circle.',
      403: readOnly,
      404: 'The sandbox does not exist.',
      409: 'Another service has an HTTP port already, or there are too many services.',
    },
    run: async ({ ctx, params, query, body }) => {
      const { name, service_name: service } = params
      const watchMs = durationOr(query.duration ?? query.timeout, defaultWatchMs)
      const telling = await changeService(ctx, name, service, body, watchMs)
      if (telling) return tellAll(telling)
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
    summary: 'Stop a service and forget it',
    description: 'Its log goes with it.',
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
    summary: 'Start a service',
    description: 'And, before it, what it needs. Counts restarts from zero again.',
    query: Watched,
    errors: { 403: readOnly, 404: noService, 409: 'It is starting already.' },
    run: async ({ ctx, params, query }) =>
      tellAll(await startService(ctx, params.name, params.service_name, durationOr(query.duration, defaultWatchMs))),
  }),
  route({
    ...acting,
    path: `${onePath}/stop`,
    id: 'stopService',
    summary: 'Stop a service',
    description: 'It stays stopped until it is started, also when the sandbox starts again.',
    query: Type.Object({
      timeout: duration('Between SIGTERM and SIGKILL; 10s when omitted or not a duration.'),
    }),
    errors: { 403: readOnly, 404: noService, 409: 'It does not run, or a service that runs needs it.' },
    run: async ({ ctx, params, query }) =>
      tellAll(await stopService(ctx, params.name, params.service_name, durationOr(query.timeout, defaultStopMs))),
  }),
  route({
    ...acting,
    path: `${onePath}/restart`,
    id: 'restartService',
    summary: 'Stop a service, if it runs, and start it',
    query: Watched,
    errors: { 403: readOnly, 404: noService },
    run: async ({ ctx, params, query }) =>
      tellAll(await restartService(ctx, params.name, params.service_name, durationOr(query.duration, defaultWatchMs))),
  }),
  route({
    ...shared,
    ...streaming,
    method: 'GET',
    path: `${onePath}/logs`,
    id: 'getServiceLog',
    summary: 'Show what a service printed',
    description: 'Both streams by time. Of each the last 32 MiB are kept.',
    scope: 'read',
    query: Type.Object({
      lines: Type.Optional(Type.Integer({ description: 'Only so many, the last ones; all when omitted.' })),
      duration: duration('How long to follow what comes after; not at all when omitted or not a duration.'),
    }),
    errors: { 404: noService },
    run: async ({ ctx, params, query }) => {
      const lines = query.lines !== undefined && query.lines > 0 ? query.lines : undefined
      return tellAll(await tellLogOf(ctx, params.name, params.service_name, lines, durationOr(query.duration, 0)))
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
