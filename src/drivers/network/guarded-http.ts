// The HTTP client for every request whose target a tenant can influence. It resolves names itself, checks every address
// and connects to a checked one, on every redirect again. All failures have the same message, so that they do not tell
// a tenant what listens in the networks of the host; the operator's log gets the reason.
import { type IncomingMessage, Agent as PlainAgent, request as plainRequest } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { isLoopback } from '../../model/network.ts'
import { type AllowedTarget, isAllowedAddress } from './outbound-address.ts'
import { type Lookup, outboundLookup } from './outbound-lookup.ts'

export interface OutboundPolicy {
  allowed: AllowedTarget[]
  lookup: Lookup
  /** Receives why a request failed, for the operator. */
  onFailure(failure: { host: string; reason: string }): void
}

/** A request that was refused or that got no answer. */
export class OutboundError extends Error {
  override readonly name = 'OutboundError'
  /** Whether another attempt may succeed. */
  readonly isTransient: boolean

  constructor(isTransient: boolean, cause: unknown) {
    super('The host cannot be reached', { cause })
    this.isTransient = isTransient
  }
}

export interface GuardedRequest {
  method?: 'GET' | 'HEAD'
  headers?: Record<string, string>
  signal: AbortSignal
  /** By default redirects are followed. */
  followRedirects?: boolean
}

export interface GuardedAnswer {
  message: IncomingMessage
  /** The URL that answered, after redirects. */
  url: URL
}

export interface GuardedHttp {
  /** Credentials in the `authorization` header are sent only until the first redirect to another origin. */
  send(url: URL, request: GuardedRequest): Promise<GuardedAnswer>
  /** Yields the body, and fails when the server stalls. */
  readBody(answer: GuardedAnswer): AsyncGenerator<Buffer>
  close(): void
}

export function outboundPolicy(options: Partial<OutboundPolicy> = {}): OutboundPolicy {
  return { allowed: [], lookup: outboundLookup(), onFailure: () => undefined, ...options }
}

const maxRedirects = 5
const maxHeaderBytes = 16 * 1024
const redirectCodes = new Set([301, 302, 303, 307, 308])
/** A server that sends less than this within the stall timeout counts as stalled. */
const minBytesPerStall = 32 * 1024

const transientCodes = new Set([
  'ECONNRESET',
  'ECONNREFUSED',
  'ETIMEDOUT',
  'EPIPE',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ERR_STREAM_PREMATURE_CLOSE',
])

class Refusal extends Error {}

export function guardedHttp(policy: OutboundPolicy, { stallSeconds }: { stallSeconds: number }): GuardedHttp {
  const limits = { keepAlive: true, maxSockets: 6 }
  const agents = { 'http:': new PlainAgent(limits), 'https:': new SecureAgent(limits) }

  async function sendOnce(
    url: URL,
    { method = 'GET', headers = {}, signal }: GuardedRequest,
  ): Promise<IncomingMessage> {
    const lookup = fixedLookup(await checkedAddresses(url, policy))
    signal.throwIfAborted()
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const isTls = url.protocol === 'https:'
    const agent = agents[isTls ? 'https:' : 'http:']
    const options = { method, headers, signal, agent, lookup, maxHeaderSize: maxHeaderBytes }
    const request = isTls ? secureRequest(url, options) : plainRequest(url, options)
    const timeout = setTimeout(() => request.destroy(stalled(stallSeconds)), stallSeconds * 1000)
    request.once('response', resolve).on('error', reject).end()
    return promise.finally(() => clearTimeout(timeout))
  }

  async function follow(start: URL, request: GuardedRequest): Promise<GuardedAnswer> {
    const headers = { ...request.headers }
    for (let url = start, hops = 0; hops <= maxRedirects; hops++) {
      const message = await sendOnce(url, { ...request, headers })
      const { location } = message.headers
      const isRedirect = redirectCodes.has(message.statusCode ?? 0) && location !== undefined
      if (!isRedirect || request.followRedirects === false) return { message, url }
      message.destroy()
      const next = redirectTarget(location, url)
      if (next.origin !== url.origin) delete headers.authorization
      url = next
    }
    throw new Refusal(`more than ${maxRedirects} redirects`)
  }

  function failed(error: unknown, url: URL, signal?: AbortSignal): unknown {
    if (signal?.aborted) return error
    const { code, message } = error as NodeJS.ErrnoException
    const isTransient = transientCodes.has(code ?? '') || message === 'aborted'
    policy.onFailure({ host: url.host, reason: code === undefined ? message : `${code}: ${message}` })
    return new OutboundError(isTransient, error)
  }

  return {
    async send(url, request) {
      try {
        return await follow(url, request)
      } catch (error) {
        throw failed(error, url, request.signal)
      }
    },
    async *readBody({ message, url }) {
      const body = watchedBody(message, stallSeconds)
      try {
        // Not `yield*`: errors that a consumer throws into this generator are not failures of the server.
        for (let next = await body.next(); !next.done; next = await body.next()) yield next.value
      } catch (error) {
        throw failed(error, url)
      } finally {
        await body.return(undefined)
      }
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy()
    },
  }
}

/** Returns the addresses of the URL's host. Throws if one of them is not allowed: a mixture is an attempt to get past. */
async function checkedAddresses(url: URL, { allowed, lookup }: OutboundPolicy): Promise<string[]> {
  requireScheme(url)
  const host = url.hostname.replace(/^\[|\]$/g, '')
  const port = Number(url.port || (url.protocol === 'https:' ? 443 : 80))
  const addresses = isIP(host) === 0 ? await lookup(host) : [host]
  const refused = addresses.find((address) => !isAllowedAddress({ host, port, address }, allowed))
  if (addresses.length === 0 || refused !== undefined)
    throw new Refusal(`the address ${refused} of ${host} is not allowed; BERTH_OUTBOUND_ALLOW lists exceptions`)
  return addresses
}

function requireScheme(url: URL): void {
  if (url.username !== '' || url.password !== '') throw new Refusal('the URL contains credentials')
  if (url.protocol === 'https:' || (url.protocol === 'http:' && isLoopback(url.hostname))) return
  throw new Refusal(`${url.protocol}//${url.host} is neither HTTPS nor on loopback`)
}

/** Makes the connection use the addresses that were checked, so that a second answer of DNS has no effect. */
function fixedLookup(addresses: string[]): LookupFunction {
  const found = addresses.map((address) => ({ address, family: isIP(address) }))
  return (_, options, callback) => {
    if (options.all) callback(null, found)
    else callback(null, found[0]!.address, found[0]!.family)
  }
}

function redirectTarget(location: string, from: URL): URL {
  const url = URL.canParse(location, from.href) ? new URL(location, from) : undefined
  if (url && (url.protocol === 'https:' || from.protocol === 'http:')) return url
  throw new Refusal('redirect to a URL without TLS')
}

function stalled(seconds: number): Error {
  return Object.assign(new Error(`sent too little within ${seconds} s`), { code: 'STALLED' })
}

async function* watchedBody(message: IncomingMessage, stallSeconds: number): AsyncGenerator<Buffer> {
  let bytes = 0
  let bytesBefore = 0
  let isReading = true
  const watch = setInterval(() => {
    // While the consumer is slow, for example because of the disk, the server cannot send.
    if (isReading && bytes - bytesBefore < minBytesPerStall) message.destroy(stalled(stallSeconds))
    bytesBefore = bytes
  }, stallSeconds * 1000)
  try {
    for await (const chunk of message as AsyncIterable<Buffer>) {
      bytes += chunk.length
      isReading = false
      yield chunk
      isReading = true
    }
  } finally {
    clearInterval(watch)
    message.destroy()
  }
}
