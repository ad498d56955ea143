// HTTP requests to registries and their redirects. The targets are untrusted: they come from image names and from the
// answers of registries.
import { lookup } from 'node:dns'
import { type IncomingMessage, Agent as PlainAgent, request as plainRequest } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import { isIP, type LookupFunction } from 'node:net'
import { isLoopback } from '../../model/network.ts'
import { classifyAddress } from './address.ts'
import { readAll } from './blob.ts'
import { ImageError } from './driver.ts'

export interface ImageHttp {
  /** Follows redirects. The `authorization` header is sent only to the original origin, other headers everywhere. */
  get(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage>
  close(): void
}

const maxRedirects = 5
const redirectCodes = new Set([301, 302, 303, 307, 308])
/** A registry that sends less than this within the stall timeout counts as stalled. */
const minBytesPerStall = 32 * 1024

/** Fetches from `registry`. If that has a public address, redirects to private networks are refused. */
export function imageHttp(registry: URL, stallSeconds: number): ImageHttp {
  const agents = {
    'http:': new PlainAgent({ keepAlive: true, maxSockets: 6 }),
    'https:': new SecureAgent({ keepAlive: true, maxSockets: 6 }),
  }
  const { checkAddress, lookupChecked } = addressGuard(registry)

  function send(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage> {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const literal = url.hostname.replace(/^\[|\]$/g, '')
    if (isIP(literal)) checkAddress(literal, url.hostname)
    const isTls = url.protocol === 'https:'
    const agent = agents[isTls ? 'https:' : 'http:']
    const options = { headers, signal, agent, lookup: lookupChecked(url.hostname) }
    const request = isTls ? secureRequest(url, options) : plainRequest(url, options)
    const timeout = setTimeout(() => request.destroy(stalled(url, stallSeconds)), stallSeconds * 1000)
    request.once('response', resolve).on('error', reject).end()
    return promise.finally(() => clearTimeout(timeout))
  }

  return {
    async get(start, headers, signal) {
      let url = start
      for (let hops = 0; hops <= maxRedirects; hops++) {
        const { authorization, ...others } = headers
        const sent = authorization !== undefined && url.origin === start.origin ? headers : others
        const message = await send(url, sent as Record<string, string>, signal)
        const location = message.headers.location
        if (!redirectCodes.has(message.statusCode ?? 0) || location === undefined) return message
        message.destroy()
        url = redirectTarget(location, url)
      }
      throw new ImageError('unreachable', `The registry ${registry.host} redirects too often`)
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy()
    },
  }
}

/** Refuses addresses that a registry must not make the platform connect to. */
function addressGuard(registry: URL) {
  let isRegistryPublic = false

  function checkAddress(address: string, host: string): void {
    const kind = classifyAddress(address)
    const isRegistry = host === registry.hostname
    if (kind === 'forbidden' || (kind === 'private' && isRegistryPublic && !isRegistry))
      throw new ImageError('unreachable', `The registry redirects to ${host}, whose address is not allowed for images`)
    if (kind === 'public' && isRegistry) isRegistryPublic = true
  }

  function lookupChecked(host: string): LookupFunction {
    return (name, options, callback) =>
      lookup(name, { ...options, all: true }, (error, addresses) => {
        if (error) return callback(error, [])
        try {
          for (const { address } of addresses) checkAddress(address, host)
        } catch (refusal) {
          return callback(refusal as NodeJS.ErrnoException, [])
        }
        if (options.all) callback(null, addresses)
        else callback(null, addresses[0]!.address, addresses[0]!.family)
      })
  }

  return { checkAddress, lookupChecked }
}

function redirectTarget(location: string, from: URL): URL {
  const url = URL.canParse(location, from.href) ? new URL(location, from) : undefined
  const isSafe =
    url?.protocol === 'https:' || (url?.protocol === 'http:' && from.protocol === 'http:' && isLoopback(url.hostname))
  if (url && isSafe) return url
  throw new ImageError(
    'unreachable',
    `${from.host} redirects to an address without TLS: report this to the registry's operator`,
  )
}

function stalled(url: URL, seconds: number): ImageError {
  return new ImageError('unreachable', `${url.host} sent nothing for ${seconds} s: try again later`)
}

/** Yields the body, and fails when the registry stalls. */
export async function* readBody(message: IncomingMessage, url: URL, stallSeconds: number): AsyncGenerator<Buffer> {
  let bytes = 0
  let bytesBefore = 0
  let isReading = true
  const watch = setInterval(() => {
    // While the consumer is slow, for example because of the disk, the registry cannot send.
    if (isReading && bytes - bytesBefore < minBytesPerStall) message.destroy(stalled(url, stallSeconds))
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

/** Reads a body that has to fit into memory. */
export function readSmallBody(
  message: IncomingMessage,
  url: URL,
  { stallSeconds, maxBytes }: { stallSeconds: number; maxBytes: number },
): Promise<Buffer> {
  return readAll(bounded(readBody(message, url, stallSeconds), maxBytes))
}

async function* bounded(source: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of source) {
    bytes += chunk.length
    if (bytes > maxBytes)
      throw new ImageError('too_large', `The registry answers with more than the expected ${maxBytes} bytes`)
    yield chunk
  }
}
