// The heads as they are passed on: fields that concern one connection only are left out, and ours are added.
import type { ResponseRules } from '../routing/app-port.ts'
import { chunked, type RequestHead, type ResponseHead, untilClose } from './message.ts'

/** What is said of the client beside its own words. */
export interface Peer {
  address: string
  secure: boolean
  port: number
  remotePort?: number
  /** It comes from this machine, as a proxy of the operator does, and is believed what it says of its own clients. */
  trusted: boolean
}

const hop = 1
const ours = 2
const believed = 3

// What happens to a field of a request; others are passed on.
const requestFields = new Map<string, number>([
  ['connection', hop],
  ['keep-alive', hop],
  ['proxy-connection', hop],
  ['proxy-authorization', hop],
  ['te', hop],
  ['trailer', hop],
  ['transfer-encoding', hop],
  ['content-length', hop],
  ['upgrade', hop],
  ['host', hop],
  ['http2-settings', hop],
  ['fly-client-ip', ours],
  ['fly-forwarded-port', ours],
  ['fly-request-id', ours],
  ['fly-region', ours],
  ['fly-replay-src', ours],
  ['fly-replay-failed', ours],
  ['fly-preferred-instance-unavailable', ours],
  ['fly-replay-cache-status', ours],
  ['x-forwarded-for', believed],
  ['x-forwarded-proto', believed],
  ['x-forwarded-host', believed],
  ['x-forwarded-port', believed],
  ['x-forwarded-ssl', ours],
])

const responseFields = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authenticate',
  'te',
  'transfer-encoding',
  'content-length',
  'upgrade',
  'fly-request-id',
])

export interface RequestOptions {
  id: string
  /** The token was for the platform, and the program behind must not see it. */
  withoutAuthorization: boolean
  /** The connection may be used again. */
  keepAlive: boolean
  /** Further fields, each with the end of its line. */
  added: string
}

export function requestText(head: RequestHead, peer: Peer, options: RequestOptions): string {
  const { fields, hopFields } = head
  let text = `${head.method} ${head.target} HTTP/1.1\r\nHost: ${head.authority}\r\n`
  let told: Map<string, string> | undefined
  for (let index = 0; index < fields.length; index += 3) {
    const name = fields[index + 1]!
    const fate = requestFields.get(name)
    if (fate === undefined) {
      if (hopFields?.includes(name) || (name === 'authorization' && options.withoutAuthorization)) continue
      // Programs that read fields as variables cannot tell a dash from this.
      if (name.includes('_') && requestFields.has(name.replaceAll('_', '-'))) continue
      text += `${fields[index]}: ${fields[index + 2]}\r\n`
    } else if (fate === believed && (peer.trusted || name === 'x-forwarded-for')) {
      told ??= new Map()
      const before = told.get(name)
      told.set(name, before === undefined ? fields[index + 2]! : `${before}, ${fields[index + 2]}`)
    }
  }
  if (head.body === chunked) text += 'Transfer-Encoding: chunked\r\n'
  else if (head.framed) text += `Content-Length: ${head.body}\r\n`
  if (head.upgrade) text += `Connection: Upgrade\r\nUpgrade: ${head.upgrade}\r\n`
  else if (!options.keepAlive) text += 'Connection: close\r\n'
  return `${text}${forwardedText(head, peer, told)}${options.added}Fly-Request-Id: ${options.id}\r\n\r\n`
}

/** Also when a proxy of the operator says so. */
export function isSecureRequest({ fields }: RequestHead, peer: Peer): boolean {
  if (peer.secure || !peer.trusted) return peer.secure
  for (let index = 1; index < fields.length; index += 3) {
    if (fields[index] === 'x-forwarded-proto') return fields[index + 1]!.toLowerCase() === 'https'
  }
  return false
}

function forwardedText(head: RequestHead, peer: Peer, told: Map<string, string> | undefined): string {
  const chain = told?.get('x-forwarded-for')
  const proto = told?.get('x-forwarded-proto') ?? (peer.secure ? 'https' : 'http')
  const port = told?.get('x-forwarded-port') ?? peer.port
  const client = (peer.trusted && chain?.split(',')[0]?.trim()) || peer.address
  return `X-Forwarded-For: ${chain === undefined ? peer.address : `${chain}, ${peer.address}`}\r
X-Forwarded-Proto: ${proto}\r
X-Forwarded-Host: ${told?.get('x-forwarded-host') ?? head.authority}\r
X-Forwarded-Port: ${port}\r
X-Forwarded-Ssl: ${proto === 'https' ? 'on' : 'off'}\r
Fly-Client-IP: ${client}\r
Fly-Forwarded-Port: ${port}\r
Via: 1.${head.minor} berth\r
`
}

export interface ResponseOptions {
  id: string
  keepAlive: boolean
  /** How its body goes out to the client. */
  framing: 'length' | 'chunked' | 'close'
  upgrade?: string | undefined
}

export function responseText(head: ResponseHead, options: ResponseOptions): string {
  const { fields, hopFields } = head
  let text = `HTTP/1.1 ${head.status} ${head.reason}\r\n`
  for (let index = 0; index < fields.length; index += 3) {
    const name = fields[index + 1]!
    if (name === 'content-length') {
      // Also where there is no body: it tells how long the answer to a GET would be.
      if (options.framing === 'length') text += `Content-Length: ${fields[index + 2]}\r\n`
    } else if (!responseFields.has(name) && !hopFields?.includes(name)) {
      text += `${fields[index]}: ${fields[index + 2]}\r\n`
    }
  }
  if (options.framing === 'chunked') text += 'Transfer-Encoding: chunked\r\n'
  if (options.upgrade) text += `Connection: Upgrade\r\nUpgrade: ${options.upgrade}\r\n`
  else if (!options.keepAlive) text += 'Connection: close\r\n'
  return `${text}Via: 1.${head.minor} berth\r\nFly-Request-Id: ${options.id}\r\n\r\n`
}

const platformFields = new Set([
  'server',
  'via',
  'fly-replay',
  'fly-replay-cache',
  'fly-replay-cache-ttl-secs',
  'fly-replay-cache-allow-bypass',
])

/** The same for an app, whose owner may have fields set or left out. */
export function appResponseText(
  head: ResponseHead,
  options: ResponseOptions,
  rules: ResponseRules | undefined,
): string {
  const { fields, hopFields } = head
  const isPristine = rules?.pristine === true
  let text = `HTTP/1.1 ${head.status} ${head.reason}\r\n`
  let via = ''
  for (let index = 0; index < fields.length; index += 3) {
    const name = fields[index + 1]!
    if (name === 'content-length') {
      if (options.framing === 'length') text += `Content-Length: ${fields[index + 2]}\r\n`
    } else if (responseFields.has(name) || hopFields?.includes(name) || rules?.fields.has(name)) continue
    else if (isPristine || !platformFields.has(name)) text += `${fields[index]}: ${fields[index + 2]}\r\n`
    else if (name === 'via') via += `${fields[index + 2]}, `
  }
  if (options.framing === 'chunked') text += 'Transfer-Encoding: chunked\r\n'
  if (options.upgrade) text += `Connection: Upgrade\r\nUpgrade: ${options.upgrade}\r\n`
  else if (!options.keepAlive) text += 'Connection: close\r\n'
  if (!rules) return `${text}Server: berth\r\nVia: ${via}1.${head.minor} berth\r\nFly-Request-Id: ${options.id}\r\n\r\n`
  for (const [name, values] of rules.fields) for (const value of values) text += `${name}: ${value}\r\n`
  if (isPristine) return `${text}\r\n`
  if (!rules.fields.has('server')) text += 'Server: berth\r\n'
  if (!rules.fields.has('via')) text += `Via: ${via}1.${head.minor} berth\r\n`
  if (!rules.fields.has('fly-request-id')) text += `Fly-Request-Id: ${options.id}\r\n`
  return `${text}\r\n`
}

/** An answer on the way, such as 100 Continue. */
export function interimText(head: ResponseHead): string {
  let text = `HTTP/1.1 ${head.status} ${head.reason}\r\n`
  for (let index = 0; index < head.fields.length; index += 3) {
    if (!responseFields.has(head.fields[index + 1]!)) text += `${head.fields[index]}: ${head.fields[index + 2]}\r\n`
  }
  return `${text}\r\n`
}

/** Clients of HTTP/1.1 get chunks where the length is not known, so that they can tell a whole answer from a broken one. */
export function framingFor(request: RequestHead, response: ResponseHead): ResponseOptions['framing'] {
  if (response.body >= 0) return 'length'
  if (request.minor === 0) return 'close'
  return response.body === chunked || response.body === untilClose ? 'chunked' : 'length'
}
