import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest, LogController } from 'fastify'
import type { Credential } from '../../actions/account/credential.ts'
import { acceptAnyBodyAsJson } from './body.ts'
import { clientErrorHandler, followExchanges } from './client-error.ts'
import { addHooks } from './hooks.ts'
import { MethodTable } from './method-table.ts'
import { addOperations } from './operation.ts'
import { commonHeaders, type ServerOptions } from './options.ts'
import { addPages } from './pages.ts'
import { type Area, asBerthError, problemBody, problemHeaders } from './problem.ts'
import { refuseConnection } from './raw-response.ts'
import { addSockets, isWebSocketUpgrade } from './socket.ts'
import { addUnknownPaths, checkToken } from './unknown-path.ts'
import { schemaCompiler } from './validation.ts'

const bodyLimit = 1024 * 1024

/** The arguments of a command are part of its URL, and Linux allows 128 KiB for one argument. */
const maxHeaderSize = 512 * 1024

/** The head of each request must arrive within this time, so that slow clients cannot hold many connections. */
const defaultHeadTimeoutMs = 30_000
/** Node looks for slow clients every 30 s by default, so that they would last twice as long. */
const timeoutCheckMs = 1_000

export function buildServer(options: ServerOptions): FastifyInstance {
  const { area, log, tls, headTimeoutMs = defaultHeadTimeoutMs } = options
  const methods = new MethodTable()
  const httpOptions = {
    maxHeaderSize,
    headersTimeout: headTimeoutMs,
    connectionsCheckingInterval: timeoutCheckMs,
    shouldUpgradeCallback: (request: IncomingMessage) => options.sockets !== undefined && isWebSocketUpgrade(request),
    // Node's own refusal would have no body. The hook that checks headers refuses these requests.
    requireHostHeader: false,
  }
  const server = Fastify({
    loggerInstance: log,
    schemaController: { compilersFactory: { buildSerializer: lazySerializers } },
    logController: new LogController({ disableRequestLogging: true }),
    // A child logger per request is not worth its cost: most requests write one line, which carries the id itself.
    childLoggerFactory: (logger) => logger,
    genReqId: () => randomUUID(),
    requestIdHeader: false,
    bodyLimit,
    // A slow client must not hold a connection for ever; uploads of files to sandboxes may take longer.
    requestTimeout: area === 'sandbox' ? 0 : 30_000,
    routerOptions: { maxParamLength: 300 },
    ...(tls ? { https: { ...tls, ...httpOptions, handshakeTimeout: headTimeoutMs } } : { http: httpOptions }),
    // Fastify calls it for paths that cannot be decoded, before any hook.
    frameworkErrors: (err, request, reply) => {
      reply.headers(commonHeaders(area, request.id))
      checkToken(options, request).then(
        () => sendProblem(area, err, request, reply),
        (refusal) => sendProblem(area, refusal, request, reply),
      )
    },
    clientErrorHandler: clientErrorHandler(options, methods),
  }) as unknown as FastifyInstance
  server.decorateRequest('tokenHash', null as unknown as Buffer) // declared up front, so that all requests share one hidden class
  server.decorateRequest('credentials', null as unknown as Credential[])
  server.setValidatorCompiler(schemaCompiler())
  server.setErrorHandler((err, request, reply) => sendProblem(area, err, request, reply))
  acceptAnyBodyAsJson(server)
  addHooks(server, options)
  addUnknownPaths(server, options, methods)
  addOperations(server, options)
  addPages(server, options)
  followExchanges(server.server)
  answerUnusual(server, area, methods)
  if (options.sockets) addSockets(server, options, options.sockets)
  return server
}

/** Answers what Node would refuse without a body, or by closing the connection. */
function answerUnusual({ server, routing }: FastifyInstance, area: Area, methods: MethodTable): void {
  // Other expectations than 100-continue are ignored, as most servers do.
  server.on('checkExpectation', routing)
  server.on('connect', (request: IncomingMessage, connection: Duplex) => {
    connection.on('error', () => connection.destroy())
    refuseConnection(area, connection, randomUUID(), methods.refusalOf('CONNECT', request.url ?? ''))
  })
}

/** Compiles a response serializer when it is first used: most operations are never called in the life of a process. */
function lazySerializers(...settings: Parameters<ReturnType<typeof SerializerSelector>>) {
  const compile = SerializerSelector()(...settings)
  return (definition: Parameters<typeof compile>[0]) => {
    let compiled: ReturnType<typeof compile> | undefined
    return (answer: unknown) => {
      compiled ??= compile(definition)
      return compiled(answer)
    }
  }
}

function sendProblem(area: Area, err: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const error = asBerthError(err)
  if (error.statusCode >= 500) request.log.error({ request: request.id, err: error.cause ?? error }, error.message)
  const body = request.routeOptions.config?.operation?.problem?.(error) ?? problemBody(area, error)
  reply.status(error.statusCode).headers(problemHeaders(error)).send(body)
}
