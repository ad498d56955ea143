import { createHash } from 'node:crypto'
import type { ErrorObject } from 'ajv'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { requireAccess } from '../../actions/account/access.ts'
import { type Credential, chooseCredential } from '../../actions/account/credential.ts'
import { getMachineToken } from '../../actions/app/machine-itself.ts'
import { requireToken } from '../../actions/context.ts'
import { runOnce } from '../../actions/idempotency.ts'
import type { LiveContext } from '../../live/context.ts'
import { BerthError, unauthorized } from '../../model/errors.ts'
import { machineHeader } from '../../model/network.ts'
import { requirementOf } from './access.ts'
import { isMachineSelfRequest } from './hooks.ts'
import type { ServerOptions } from './options.ts'
import { problemBody } from './problem.ts'
import { rateLimiter, readRate, writeRate } from './rate-limit.ts'
import { Answer, type Call, type Route, readSearch, StreamAnswer, type UncheckedCall, withAliases } from './route.ts'
import { refuseOtherMethods } from './unknown-path.ts'
import { refusalOf } from './validation.ts'

/** Registers the route table with the HTTP framework. */
export function addOperations(server: FastifyInstance, options: ServerOptions): void {
  const streams = new Set<AbortController>()
  // Closing the server waits for open responses, and a stream may never end by itself.
  server.addHook('preClose', async () => {
    for (const stream of streams) stream.abort()
  })
  const takeFromRate = options.rateLimit ? rateLimiter() : undefined
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
        schema: schemasOf(operation),
        handler: async (request, reply) => {
          const rate = operation.scope === 'read' ? readRate : writeRate
          takeFromRate?.(rateKey(operation, request), rate, operation.rateLimitCode)
          const credential = await credentialOf(options, operation, request)
          const sessionEnded = openSession(options, operation, request, reply, credential)
          let release: (() => void) | undefined
          try {
            const ctx = await contextOf(options, operation, request, credential)
            if (isLong(operation)) release = await ctx.connections.take(ctx.db, ctx.tokenHash)
            const result = await answer(ctx, operation, request)
            if (!(result instanceof StreamAnswer))
              return reply.sent ? reply : reply.status(result.status).send(result.body ?? undefined)
            release ??= await ctx.connections.take(ctx.db, ctx.tokenHash)
            return await sendStream(result, request, reply, streams)
          } finally {
            release?.()
            sessionEnded()
          }
        },
      })
    }
    refuseOtherMethods(
      server,
      url,
      operations.map(({ method }) => method),
    )
  }
}

function schemasOf({ params, query, body, response, status, otherStatus }: Route): Record<string, unknown> {
  return {
    ...(params ? { params } : {}),
    ...(query ? { querystring: query } : {}),
    ...(body ? { body } : {}),
    ...(response ? { response: { [status]: response, ...(otherStatus ? { [otherStatus]: response } : {}) } } : {}),
  }
}

/** Requests that can stay open for long count before they run. Others are too short to be worth a look at the quota. */
function isLong({ streams, rawBody, waits }: Route): boolean {
  return (streams ?? rawBody ?? waits) === true
}

function rateKey(operation: Route, request: FastifyRequest): string {
  const token = request.tokenHash.toString('base64')
  return `${token} ${operation.id} ${JSON.stringify(request.params)}`
}

/** Longer than the request that revokes its own token takes to be answered. */
const revokedGraceMs = 250

/**
 * Ends the request when its token is revoked or expires meanwhile: with 401 when nothing has been sent, otherwise by
 * closing the connection.
 */
function openSession(
  { openSessions }: ServerOptions,
  operation: Route,
  request: FastifyRequest,
  reply: FastifyReply,
  credential: Credential | undefined,
): () => void {
  if (!credential) return () => {} // it was not authorized by a token
  const close = () => {
    if (reply.sent || operation.streams) {
      reply.raw.destroy()
      return
    }
    setTimeout(() => {
      if (reply.sent) return
      reply.raw.once('finish', () => request.raw.destroy()) // a body that is still being uploaded is not read any further
      reply.header('connection', 'close').send(unauthorized('invalid token'))
    }, revokedGraceMs).unref()
  }
  return openSessions.add(credential.hash.toString('base64'), close, credential.attenuation?.until)
}

type OwnParams = Parameters<typeof getMachineToken>[2]

/** The token that the request is checked with. Undefined when it was sent without one. */
async function credentialOf(
  { context, area }: ServerOptions,
  operation: Route,
  request: FastifyRequest,
): Promise<Credential | undefined> {
  const { credentials } = request
  if (credentials.length <= 1) return credentials[0]
  const { targets, bits } = requirementOf(operation, request as UncheckedCall)
  return chooseCredential({ ...context, area }, credentials, targets, bits)
}

async function contextOf(
  options: ServerOptions,
  operation: Route,
  request: FastifyRequest,
  credential: Credential | undefined,
): Promise<LiveContext> {
  const { params, headers } = request
  const tokenHash = credential?.hash ?? request.tokenHash
  const attenuation = credential?.attenuation
  const ctx: LiveContext = { ...options.context, area: options.area, tokenHash, attenuation }
  if (!isMachineSelfRequest(operation, request)) return ctx
  return { ...ctx, tokenHash: await getMachineToken(ctx, String(headers[machineHeader]), params as OwnParams) }
}

async function answer(ctx: LiveContext, operation: Route, request: FastifyRequest): Promise<Answer | StreamAnswer> {
  if (ctx.attenuation) {
    const { targets, bits } = requirementOf(operation, request as UncheckedCall)
    await requireAccess(ctx, targets, bits)
  }
  const invalid = findInvalidInput(operation, request)
  const { params, query, body, headers, credentials } = request
  if (invalid) {
    await requireToken(ctx)
    if (invalid.code !== 'bad_request') await operation.precheck?.({ ctx, params })
    throw invalid
  }
  const call = { ctx, params, query, body, headers, search: readSearch(request.url), credentials }
  const key = headers['idempotency-key']
  if (operation.method !== 'POST' || operation.streams || key === undefined) return run(operation, call)
  const path = request.url.split('?')[0]!
  return runOnce(
    ctx,
    {
      key: String(key),
      path,
      attenuation: attenuationOf(credentials),
      query,
      body,
      outside: operation.outsideTransaction,
    },
    (db) => run(operation, { ...call, ctx: { ...ctx, db } }) as Promise<Answer>,
    (error) => problemBody(ctx.area, error),
  )
}

/** Empty for a token as it was issued; otherwise it ends with a space, which keys cannot contain. */
function attenuationOf(credentials: readonly Credential[]): string {
  const [first] = credentials
  if (credentials.length <= 1) return first?.attenuation ? `${first.attenuation.digest} ` : ''
  const all = credentials.map(({ hash, attenuation }) => `${hash.toString('base64')} ${attenuation?.digest}`).join(' ')
  return `${createHash('sha256').update(all).digest('base64url')} `
}

async function run(operation: Route, call: Call<unknown, unknown, unknown>): Promise<Answer | StreamAnswer> {
  const result = await operation.run(call)
  return result instanceof Answer || result instanceof StreamAnswer ? result : new Answer(operation.status, result)
}

function findInvalidInput(operation: Route, request: FastifyRequest): BerthError | undefined {
  if (request.body instanceof BerthError) return request.body
  const errors = request.validationError?.validation as ErrorObject[] | undefined
  return errors && refusalOf(errors, operation.wrongTypeStatus)
}

/** Writes to the raw response instead of using the framework, so that each piece is sent as soon as it is written. */
async function sendStream(
  answer: StreamAnswer,
  request: FastifyRequest,
  reply: FastifyReply,
  streams: Set<AbortController>,
): Promise<void> {
  const out = reply.raw
  const disconnected = new AbortController()
  streams.add(disconnected)
  disconnected.signal.addEventListener('abort', () => out.destroy())
  out.once('close', () => disconnected.abort())
  reply.hijack()
  if (!out.headersSent)
    out.writeHead(answer.status, { ...(reply.getHeaders() as Record<string, string>), ...answer.headers })
  try {
    const written = answer.write(out, disconnected.signal)
    if (out.destroyed) disconnected.abort() // it was closed before the stream began
    await written
    out.end()
  } catch (err) {
    if (!disconnected.signal.aborted)
      request.log.error({ request: request.id, err }, 'streamed response failed; connection closed')
    out.destroy()
  } finally {
    streams.delete(disconnected)
  }
}
