import { randomUUID } from 'node:crypto'
import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import type { ErrorObject } from 'ajv'
import Fastify, {
  type FastifyBaseLogger,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type HTTPMethods,
  LogController,
} from 'fastify'
import { takeOwnToken } from '../../actions/app/machine-itself.ts'
import { requireToken } from '../../actions/context.ts'
import { runOnce } from '../../actions/idempotency.ts'
import type { LiveContext } from '../../live/context.ts'
import { hashToken } from '../../model/account/token.ts'
import { BerthError, badRequest, notFound } from '../../model/errors.ts'
import { machineHeader } from '../../model/network.ts'
import { runtimeVersion } from '../../model/sandbox/sandbox.ts'
import { readTokenHash } from './auth.ts'
import type { Metrics } from './metrics.ts'
import { addPages } from './pages.ts'
import { type Area, asBerthError, problemBody, problemHeaders } from './problem.ts'
import { rateLimiter, readRate, writeRate } from './rate-limit.ts'
import { Answer, type Call, type Route, readSearch, type SocketRoute, StreamAnswer } from './route.ts'
import { addSockets } from './socket.ts'
import { refusalOf, schemaCompiler } from './validation.ts'

export interface ServerOptions {
  area: Area
  routes: Route[]
  sockets?: SocketRoute[]
  /** What every request is answered with; its token is added to it. */
  ground: Omit<LiveContext, 'tokenHash' | 'area'>
  log: FastifyBaseLogger
  metrics: Metrics
  rateLimit: boolean
  tls?: { cert: Buffer; key: Buffer }
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Of the token this request came with. */
    tokenHash: Buffer
  }

  interface FastifyContextConfig {
    /** The operation behind this path; absent on pages such as /healthz, which need no token. */
    operation?: Route
  }
}

const bodyLimit = 1024 * 1024

/** The words of a command are part of its address, and one word of a program may have 128 KiB. */
const maxHeaderSize = 512 * 1024

/** Of requests whose body is handed on as a stream; no client can send it. */
const rawType = 'application/x-berth-raw'
const methods: HTTPMethods[] = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE']

export function buildServer(options: ServerOptions): FastifyInstance {
  const { area, log, tls } = options
  const server = Fastify({
    loggerInstance: log,
    schemaController: { compilersFactory: { buildSerializer: serializersWhenUsed } },
    logController: new LogController({ disableRequestLogging: true }),
    // No logger for each request: the one line that most of them write carries the id itself.
    childLoggerFactory: (logger) => logger,
    genReqId: () => randomUUID(),
    requestIdHeader: false,
    bodyLimit,
    // A client that trickles its request in does not hold a connection for ever; files may take longer.
    requestTimeout: area === 'sandbox' ? 0 : 30_000,
    routerOptions: { maxParamLength: 300 },
    ...(tls ? { https: { ...tls, maxHeaderSize } } : { http: { maxHeaderSize } }),
    frameworkErrors: (err, request, reply) => {
      reply.header('fly-request-id', request.id)
      sendProblem(area, err, request, reply)
    },
    clientErrorHandler(_err, socket) {
      const body = JSON.stringify(problemBody(area, badRequest('the request is not valid HTTP')))
      const head = `HTTP/1.1 400 Bad Request\r\nfly-request-id: ${randomUUID()}\r\ncontent-type: application/json\r\n`
      if (socket.writable)
        socket.end(`${head}content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`)
    },
  }) as unknown as FastifyInstance
  server.decorateRequest('tokenHash', null as unknown as Buffer) // every request has the field, so that all have one shape
  server.setValidatorCompiler(schemaCompiler())
  server.setErrorHandler((err, request, reply) => sendProblem(area, err, request, reply))
  server.setNotFoundHandler((request) => {
    throw notFound(`no such path: ${request.url.split('?')[0]}`)
  })
  acceptAnyBodyAsJson(server)
  addHooks(server, options)
  addRoutes(server, options)
  addPages(server, options)
  if (options.sockets) addSockets(server, options, options.sockets)
  return server
}

/** As with the schemas of requests: of most operations nothing is ever answered. */
function serializersWhenUsed(...settings: Parameters<ReturnType<typeof SerializerSelector>>) {
  const compile = SerializerSelector()(...settings)
  return (definition: Parameters<typeof compile>[0]) => {
    let compiled: ReturnType<typeof compile> | undefined
    return (answer: unknown) => {
      compiled ??= compile(definition)
      return compiled(answer)
    }
  }
}

/** curl sends forms by default and some clients send no type at all; every body here is JSON whatever it claims to be. */
function acceptAnyBodyAsJson(server: FastifyInstance): void {
  server.removeAllContentTypeParsers()
  server.addContentTypeParser('*', { parseAs: 'string' }, (_request, text, done) =>
    done(null, readJson(text as string)),
  )
  server.addContentTypeParser(rawType, (_request, stream, done) => done(null, stream))
}

/** A refusal is handed on as the body, because whether the token is valid is to be answered first. */
function readJson(text: string): unknown {
  if (text.trim() === '') return {}
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value
    return badRequest('the body must be a JSON object')
  } catch {
    return badRequest('the body is not valid JSON')
  }
}

/** Of every answer, also of those that refuse or open a socket. */
export function headersOf(area: Area, requestId: string): Record<string, string> {
  // Clients choose their words by the version.
  return { 'fly-request-id': requestId, ...(area === 'sandbox' && { 'sprite-version': runtimeVersion }) }
}

/** With callbacks: every request passes here three times, and a promise each costs more than what is done. */
function addHooks(server: FastifyInstance, { area, metrics }: ServerOptions): void {
  server.addHook('onRequest', (request, reply, done) => {
    reply.headers(headersOf(area, request.id))
    done(request.routeOptions.config.operation ? admit(request) : undefined)
  })
  server.addHook('preValidation', (request, _reply, done) => {
    const { operation } = request.routeOptions.config
    if (operation?.body) request.body ??= {}
    if (operation?.nullsAbsent && !(request.body instanceof BerthError)) request.body = withoutNulls(request.body)
    done()
  })
  server.addHook('onResponse', (request, reply, done) => {
    const operation = request.routeOptions.config.operation?.id ?? 'other'
    metrics.observeRequest(area, operation, reply.statusCode, reply.elapsedTime / 1000)
    request.log.info(
      {
        request: request.id,
        method: request.method,
        path: request.url.split('?')[0],
        status: reply.statusCode,
        ms: Math.round(reply.elapsedTime * 10) / 10,
      },
      'answered',
    )
    done()
  })
}

function withoutNulls(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutNulls)
  if (typeof value !== 'object' || value === null) return value
  const present = Object.entries(value).filter(([, inner]) => inner !== null)
  return Object.fromEntries(present.map(([key, inner]) => [key, withoutNulls(inner)]))
}

/** Before the body is read: no token, no work. The refusal, if there is one. */
function admit(request: FastifyRequest): BerthError | undefined {
  const { operation } = request.routeOptions.config
  if (operation?.rawBody) request.headers['content-type'] = rawType
  else if (request.headers['content-type'] !== undefined) request.headers['content-type'] = 'application/json'
  const { authorization } = request.headers
  if ((operation?.mayLackToken && authorization === undefined) || asksAboutItself(operation, request)) {
    // No token is like this, and those who ask have one each.
    request.tokenHash = hashToken(String(request.headers[machineHeader] ?? request.ip))
    return undefined
  }
  try {
    request.tokenHash = readTokenHash(authorization)
    return undefined
  } catch (err) {
    return err as BerthError
  }
}

/** Who came in by the way that only machines have, and brought no token. */
function asksAboutItself(operation: Route | undefined, { headers }: FastifyRequest): boolean {
  return operation?.forItself === true && machineHeader in headers && headers.authorization === undefined
}

function addRoutes(server: FastifyInstance, options: ServerOptions): void {
  const streams = new Set<AbortController>()
  // A stream may go on for ever, and a server that is told to stop waits for its answers.
  server.addHook('preClose', async () => {
    for (const stream of streams) stream.abort()
  })
  const take = options.rateLimit ? rateLimiter() : undefined
  const byPath = Map.groupBy(options.routes.flatMap(withAliases), (operation) => operation.path)
  for (const [path, operations] of byPath) {
    const url = path.replaceAll(/\{(\w+)\}/g, ':$1')
    for (const operation of operations) {
      server.route({
        method: operation.method,
        url,
        config: { operation },
        attachValidation: true,
        ...(operation.rawBody ? { bodyLimit: Number.MAX_SAFE_INTEGER } : {}),
        schema: {
          ...(operation.params ? { params: operation.params } : {}),
          ...(operation.query ? { querystring: operation.query } : {}),
          ...(operation.body ? { body: operation.body } : {}),
          ...(operation.response ? { response: responseSchemas(operation) } : {}),
        },
        handler: async (request, reply) => {
          const rate = operation.scope === 'read' ? readRate : writeRate
          take?.(limitKey(operation, request), rate, operation.rateLimited)
          const result = await answer(options, operation, request)
          if (result instanceof StreamAnswer) return sendStream(result, request, reply, streams)
          return reply.status(result.status).send(result.body ?? undefined)
        },
      })
    }
    refuseOtherMethods(server, url, operations)
  }
}

/** Existing clients of the sandbox interface know it under another name, and those of a few routes too. */
export function withAliases<R extends { path: string; alias?: string }>(route: R): R[] {
  const alias = route.alias ?? route.path.replace(/^\/v1\/sandboxes(?=\/|$)/, '/v1/sprites')
  return alias === route.path ? [route] : [route, { ...route, path: alias }]
}

function responseSchemas(operation: Route): Record<number, unknown> {
  const { status, otherStatus, response } = operation
  return { [status]: response, ...(otherStatus ? { [otherStatus]: response } : {}) }
}

function limitKey(operation: Route, request: FastifyRequest): string {
  const token = request.tokenHash.toString('base64')
  return `${token} ${operation.id} ${JSON.stringify(request.params)}`
}

type OwnParams = Parameters<typeof takeOwnToken>[2]

async function answer(
  options: ServerOptions,
  operation: Route,
  request: FastifyRequest,
): Promise<Answer | StreamAnswer> {
  const ctx: LiveContext = { ...options.ground, area: options.area, tokenHash: request.tokenHash }
  const refusal = refusedInput(operation, request)
  const { params, query, body } = request
  if (asksAboutItself(operation, request))
    ctx.tokenHash = await takeOwnToken(ctx, String(request.headers[machineHeader]), params as OwnParams)
  if (refusal) {
    await requireToken(ctx)
    if (refusal.code !== 'bad_request') await operation.precheck?.({ ctx, params })
    throw refusal
  }
  const { headers } = request
  const call = { ctx, params, query, body, headers, search: readSearch(request.url) }
  const key = headers['idempotency-key']
  if (operation.method !== 'POST' || operation.streams || key === undefined) return run(operation, call)
  const path = request.url.split('?')[0]!
  return runOnce(
    ctx,
    { key: String(key), path, query, body, outside: operation.outside },
    (db) => run(operation, { ...call, ctx: { ...ctx, db } }) as Promise<Answer>,
    (error) => problemBody(options.area, error),
  )
}

async function run(operation: Route, call: Call<unknown, unknown, unknown>): Promise<Answer | StreamAnswer> {
  const result = await operation.run(call)
  return result instanceof Answer || result instanceof StreamAnswer ? result : new Answer(operation.status, result)
}

/** By hand, because when each piece leaves matters to clients. */
async function sendStream(
  answer: StreamAnswer,
  request: FastifyRequest,
  reply: FastifyReply,
  streams: Set<AbortController>,
): Promise<void> {
  const out = reply.raw
  const gone = new AbortController()
  streams.add(gone)
  gone.signal.addEventListener('abort', () => out.destroy())
  out.once('close', () => gone.abort())
  reply.hijack()
  out.writeHead(answer.status, { ...(reply.getHeaders() as Record<string, string>), ...answer.headers })
  try {
    await answer.write(out, gone.signal)
    out.end()
  } catch (err) {
    if (!gone.signal.aborted) request.log.error({ request: request.id, err }, 'an answer was cut off')
    out.destroy()
  } finally {
    streams.delete(gone)
  }
}

function refusedInput(operation: Route, request: FastifyRequest): BerthError | undefined {
  if (request.body instanceof BerthError) return request.body
  const errors = request.validationError?.validation as ErrorObject[] | undefined
  return errors && refusalOf(errors, operation.wrongType)
}

function refuseOtherMethods(server: FastifyInstance, url: string, operations: Route[]): void {
  const known: string[] = operations.map((operation) => operation.method)
  if (known.includes('GET')) known.push('HEAD')
  const allow = known.join(', ')
  server.route({
    method: methods.filter((method) => !known.includes(method)),
    url,
    handler: async (request) => {
      throw new BerthError('method_not_allowed', `${request.method} is not possible here; try ${allow}`, { allow })
    },
  })
}

function sendProblem(area: Area, err: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const error = asBerthError(err)
  if (error.statusCode >= 500) request.log.error({ request: request.id, err: error.cause ?? error }, error.message)
  const body = request.routeOptions.config?.operation?.problem?.(error) ?? problemBody(area, error)
  reply.status(error.statusCode).headers(problemHeaders(error)).send(body)
}
