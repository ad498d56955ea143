import { randomUUID } from 'node:crypto'
import { SerializerSelector } from '@fastify/fast-json-stringify-compiler'
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest, LogController } from 'fastify'
import type { Credential } from '../../actions/account/credential.ts'
import { badRequest, notFound } from '../../model/errors.ts'
import { acceptAnyBodyAsJson } from './body.ts'
import { addHooks } from './hooks.ts'
import { addOperations } from './operation.ts'
import type { ServerOptions } from './options.ts'
import { addPages } from './pages.ts'
import { type Area, asBerthError, problemBody, problemHeaders } from './problem.ts'
import { addSockets } from './socket.ts'
import { schemaCompiler } from './validation.ts'

const bodyLimit = 1024 * 1024

/** The arguments of a command are part of its URL, and Linux allows 128 KiB for one argument. */
const maxHeaderSize = 512 * 1024

export function buildServer(options: ServerOptions): FastifyInstance {
  const { area, log, tls } = options
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
  server.decorateRequest('tokenHash', null as unknown as Buffer) // declared up front, so that all requests share one hidden class
  server.decorateRequest('credentials', null as unknown as Credential[])
  server.setValidatorCompiler(schemaCompiler())
  server.setErrorHandler((err, request, reply) => sendProblem(area, err, request, reply))
  server.setNotFoundHandler((request) => {
    throw notFound(`no such path: ${request.url.split('?')[0]}`)
  })
  acceptAnyBodyAsJson(server)
  addHooks(server, options)
  addOperations(server, options)
  addPages(server, options)
  if (options.sockets) addSockets(server, options, options.sockets)
  return server
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
