// Requests to registries and to where they lead. Where a request goes is decided by strangers: the name of an image
// and the answers of a registry.
import { lookup } from 'node:dns'
import { type IncomingMessage, Agent as PlainAgent, request as plainRequest } from 'node:http'
import { Agent as SecureAgent, request as secureRequest } from 'node:https'
import { BlockList, isIP, type LookupFunction } from 'node:net'
import { ImageError } from './driver.ts'

export interface ImageHttp {
  /** Follows redirects. The headers beside `authorization` go wherever it leads. */
  get(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage>
  close(): void
}

const maxRedirects = 5
const redirects = new Set([301, 302, 303, 307, 308])
/** A registry that sends less than this while the clock runs down is as good as silent. */
const leastBytes = 32 * 1024

const inner = new BlockList()
const never = new BlockList()
for (const [address, bits] of [
  ['10.0.0.0', 8],
  ['172.16.0.0', 12],
  ['192.168.0.0', 16],
  ['127.0.0.0', 8],
  ['100.64.0.0', 10],
] as const)
  inner.addSubnet(address, bits)
for (const [address, bits] of [
  ['::1', 128],
  ['fc00::', 7],
] as const)
  inner.addSubnet(address, bits, 'ipv6')
// Addresses of the link, at which clouds tell machines their secrets, and those that are nobody's.
for (const [address, bits] of [
  ['169.254.0.0', 16],
  ['0.0.0.0', 8],
  ['224.0.0.0', 3],
] as const)
  never.addSubnet(address, bits)
for (const [address, bits] of [
  ['fe80::', 10],
  ['ff00::', 8],
  ['::', 128],
] as const)
  never.addSubnet(address, bits, 'ipv6')

export function kindOfAddress(address: string): 'never' | 'inner' | 'outer' {
  const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
  if (never.check(address, family)) return 'never'
  return inner.check(address, family) ? 'inner' : 'outer'
}

export function isLoopback(hostname: string): boolean {
  return hostname === 'localhost' || hostname === '[::1]' || /^127\.\d+\.\d+\.\d+$/.test(hostname)
}

/** `home` is the host of the registry. When that is out in the world, nothing it says leads into private networks. */
export function imageHttp(home: URL, stallSeconds: number): ImageHttp {
  const agents = {
    'http:': new PlainAgent({ keepAlive: true, maxSockets: 6 }),
    'https:': new SecureAgent({ keepAlive: true, maxSockets: 6 }),
  }
  let isHomeOutside = false

  function refuseAddress(address: string, host: string): void {
    const kind = kindOfAddress(address)
    const isHome = host === home.hostname
    if (kind === 'never' || (kind === 'inner' && isHomeOutside && !isHome))
      throw new ImageError(
        'unreachable',
        `The registry leads to ${host}, which has an address that images are not fetched from`,
      )
    if (kind === 'outer' && isHome) isHomeOutside = true
  }

  function lookupAllowed(host: string): LookupFunction {
    return (name, options, callback) =>
      lookup(name, { ...options, all: true }, (error, addresses) => {
        if (error) return callback(error, [])
        try {
          for (const { address } of addresses) refuseAddress(address, host)
        } catch (refusal) {
          return callback(refusal as NodeJS.ErrnoException, [])
        }
        if (options.all) callback(null, addresses)
        else callback(null, addresses[0]!.address, addresses[0]!.family)
      })
  }

  function send(url: URL, headers: Record<string, string>, signal: AbortSignal): Promise<IncomingMessage> {
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const literal = url.hostname.replace(/^\[|\]$/g, '')
    if (isIP(literal)) refuseAddress(literal, url.hostname)
    const secure = url.protocol === 'https:'
    const options = { headers, signal, agent: agents[secure ? 'https:' : 'http:'], lookup: lookupAllowed(url.hostname) }
    const request = secure ? secureRequest(url, options) : plainRequest(url, options)
    const silent = setTimeout(() => request.destroy(stalled(url, stallSeconds)), stallSeconds * 1000)
    request.once('response', resolve).on('error', reject).end()
    return promise.finally(() => clearTimeout(silent))
  }

  return {
    async get(start, headers, signal) {
      let url = start
      for (let hops = 0; hops <= maxRedirects; hops++) {
        const { authorization, ...plain } = headers
        const sent = authorization !== undefined && url.origin === start.origin ? headers : plain
        const message = await send(url, sent as Record<string, string>, signal)
        const location = message.headers.location
        if (!redirects.has(message.statusCode ?? 0) || location === undefined) return message
        message.destroy()
        url = nextUrl(location, url)
      }
      throw new ImageError('unreachable', `The registry ${home.host} leads from one place to the next without end`)
    },
    close() {
      for (const agent of Object.values(agents)) agent.destroy()
    },
  }
}

function nextUrl(location: string, from: URL): URL {
  const url = URL.canParse(location, from.href) ? new URL(location, from) : undefined
  const isSafe =
    url?.protocol === 'https:' || (url?.protocol === 'http:' && from.protocol === 'http:' && isLoopback(url.hostname))
  if (url && isSafe) return url
  throw new ImageError(
    'unreachable',
    `${from.host} leads to a place that is not protected by TLS: ask who runs the registry`,
  )
}

function stalled(url: URL, seconds: number): ImageError {
  return new ImageError('unreachable', `${url.host} sent nothing for ${seconds} s: try again later`)
}

/** The body, for as long as it keeps coming. */
export async function* readBody(message: IncomingMessage, url: URL, stallSeconds: number): AsyncGenerator<Buffer> {
  let bytes = 0
  let before = 0
  let isReading = true
  const watch = setInterval(() => {
    // While the disk is what takes time, the registry is not to blame.
    if (isReading && bytes - before < leastBytes) message.destroy(stalled(url, stallSeconds))
    before = bytes
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
