import type { IncomingMessage } from 'node:http'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { hashToken } from '../../model/account/token.ts'
import { BerthError, badRequest } from '../../model/errors.ts'
import { machineHeader } from '../../model/network.ts'
import { readCredentials } from './auth.ts'
import { rawContentType, withoutNulls } from './body.ts'
import { commonHeaders, type ServerOptions } from './options.ts'
import type { Route } from './route.ts'

/** The hooks use callbacks: all three run for every request, and a promise costs more than the work they do. */
export function addHooks(server: FastifyInstance, { area, metrics, context }: ServerOptions): void {
  server.addHook('onRequest', (request, reply, done) => {
    reply.headers(commonHeaders(area, request.id))
    const refusal = findHeaderError(request.raw)
    done(refusal ?? (request.routeOptions.config.operation ? authenticate(request, context.encryptionKey) : undefined))
  })
  server.addHook('preValidation', (request, _reply, done) => {
    const { operation } = request.routeOptions.config
    if (operation?.body) request.body ??= {}
    if (operation?.ignoreNulls && !(request.body instanceof BerthError)) request.body = withoutNulls(request.body)
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
      'request completed',
    )
    done()
  })
}

/** Rejects requests without a readable token before their body is read. Returns the error, if there is one. */
function authenticate(request: FastifyRequest, secret: Buffer): BerthError | undefined {
  const { operation } = request.routeOptions.config
  if (operation?.rawBody) request.headers['content-type'] = rawContentType
  else if (request.headers['content-type'] !== undefined) request.headers['content-type'] = 'application/json'
  const { authorization } = request.headers
  if ((operation?.tokenOptional && authorization === undefined) || isMachineSelfRequest(operation, request)) {
    // The hash matches no token, but rate limits still tell the callers apart by it.
    request.credentials = []
    request.tokenHash = hashToken(String(request.headers[machineHeader] ?? request.ip))
    return undefined
  }
  try {
    request.credentials = readCredentials(authorization, secret)
    request.tokenHash = request.credentials[0]!.hash
    return undefined
  } catch (err) {
    return err as BerthError
  }
}

/** Whether a machine asks about itself: the request came over the machines' own listener and has no token. */
export function isMachineSelfRequest(operation: Route | undefined, { headers }: FastifyRequest): boolean {
  return operation?.machineSelf === true && machineHeader in headers && headers.authorization === undefined
}

/** A proxy in front of this listener might use another one of two fields than is checked here. */
function findHeaderError({ rawHeaders, httpVersionMinor, socket }: IncomingMessage): BerthError | undefined {
  let hosts = 0
  let authorizations = 0
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index]!
    // Compared by length first, because this runs for every header of every request.
    if (name.length === 4 && name.toLowerCase() === 'host') hosts += 1
    else if (name.length === 13 && name.toLowerCase() === 'authorization') authorizations += 1
  }
  // Clients of the Unix sockets in boxes need no host name.
  const needsHost = httpVersionMinor === 1 && socket.remoteAddress !== undefined
  if (hosts > 1 || (hosts === 0 && needsHost)) return badRequest('exactly one Host header is required')
  return authorizations > 1 ? badRequest('there is more than one Authorization header') : undefined
}

/** Throws when the headers could be interpreted in two ways. */
export function checkHeaders(request: IncomingMessage): void {
  const error = findHeaderError(request)
  if (error) throw error
}
