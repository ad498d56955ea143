// Writes the heads of forwarded messages: without hop-by-hop fields, and with the fields that the edge adds.
import type { ResponseRules } from '../routing/app-port.ts'
import type { Peer } from '../types.ts'
import { readOrigin } from './client-origin.ts'
import { chunked, type RequestHead, type ResponseHead, untilClose } from './message.ts'

/** The field concerns one connection only and is dropped. */
const hop = 1
/** The edge sets the field itself, or no client may send it. */
const own = 2
/** The field is kept if it comes from a trusted proxy. */
const ifTrusted = 3

// Request fields that are not simply forwarded.
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
  ['forwarded', ifTrusted],
  // The edge writes these from what it knows; see client-origin.ts.
  ['x-forwarded-for', own],
  ['x-forwarded-proto', own],
  ['x-forwarded-host', own],
  ['x-forwarded-port', own],
  ['x-forwarded-ssl', own],
])

/** The fields with which clients choose a machine. Programs believe all other Fly fields. */
const clientFlyFields = new Set([
  'fly-force-instance-id',
  'fly-prefer-instance-id',
  'fly-force-region',
  'fly-prefer-region',
  'fly-replay-cache-control',
])

function treatmentOf(name: string): number | undefined {
  if (name.startsWith('fly-')) return clientFlyFields.has(name) ? undefined : own
  return requestFields.get(name) ?? (name.startsWith('x-forwarded-') ? ifTrusted : undefined)
}

// Fields that say where a request goes, who sends it, or what its body is. Programs that merge trailers into the head would
// believe them without any check.
const headOnlyField =
  /^(?:authorization|cookie|set-cookie|origin|referer|via|expect|range|cache-control|max-forwards|pragma|user-agent|x-real-ip|x-http-method-override|(?:content-(?!digest$|md5$)|if-|accept|access-control-|proxy-|sec-|fly-|x-original-|x-rewrite-).*)$/

/** True for fields that are forwarded after a chunked body. The name is in lowercase. */
export function isRequestTrailer(name: string): boolean {
  const dashed = name.replaceAll('_', '-')
  return treatmentOf(dashed) === undefined && !headOnlyField.test(dashed)
}

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
  /** The token is the platform's, and the program must not see it. */
  withoutAuthorization: boolean
  /** The connection may be reused. */
  keepAlive: boolean
  /** Further header lines, each with its line end. */
  added: string
}

export function requestText(head: RequestHead, peer: Peer, options: RequestOptions): string {
  const { fields, hopFields } = head
  let text = `${head.method} ${head.target} HTTP/1.1\r\nHost: ${head.authority}\r\n`
  for (let index = 0; index < fields.length; index += 3) {
    const name = fields[index + 1]!
    const treatment = treatmentOf(name)
    if (treatment === undefined) {
      if (hopFields?.includes(name) || (name === 'authorization' && options.withoutAuthorization)) continue
      // CGI-style programs cannot tell an underscore from a dash, so this could spoof a field of the edge.
      if (name.includes('_') && treatmentOf(name.replaceAll('_', '-')) !== undefined) continue
    } else if (treatment !== ifTrusted || !peer.trusted) continue
    text += `${fields[index]}: ${fields[index + 2]}\r\n`
  }
  if (head.body === chunked) text += 'Transfer-Encoding: chunked\r\n'
  else if (head.framed) text += `Content-Length: ${head.body}\r\n`
  if (head.upgrade) text += `Connection: Upgrade\r\nUpgrade: ${head.upgrade}\r\n`
  else if (!options.keepAlive) text += 'Connection: close\r\n'
  return `${text}${originText(head, peer)}${options.added}Fly-Request-Id: ${options.id}\r\n\r\n`
}

function originText(head: RequestHead, peer: Peer): string {
  const { chain, client, host, port, proto } = readOrigin(head, peer)
  return `X-Forwarded-For: ${chain}\r
X-Forwarded-Proto: ${proto}\r
X-Forwarded-Host: ${host}\r
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
  /** Determines how the client finds the end of the body. */
  framing: 'length' | 'chunked' | 'close'
  upgrade?: string | undefined
}

export function responseText(head: ResponseHead, options: ResponseOptions): string {
  const { fields, hopFields } = head
  let text = `HTTP/1.1 ${head.status} ${head.reason}\r\n`
  for (let index = 0; index < fields.length; index += 3) {
    const name = fields[index + 1]!
    if (name === 'content-length') {
      // Also in responses to HEAD, where it is the length that a GET would have.
      if (options.framing === 'length') text += `Content-Length: ${Number(fields[index + 2])}\r\n`
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

/** Writes the head of an app's response, whose owner can have fields set or removed. */
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
      if (options.framing === 'length') text += `Content-Length: ${Number(fields[index + 2])}\r\n`
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

/** Writes an interim response, such as 100 Continue. */
export function interimText(head: ResponseHead): string {
  let text = `HTTP/1.1 ${head.status} ${head.reason}\r\n`
  for (let index = 0; index < head.fields.length; index += 3) {
    if (!responseFields.has(head.fields[index + 1]!)) text += `${head.fields[index]}: ${head.fields[index + 2]}\r\n`
  }
  return `${text}\r\n`
}

/** HTTP/1.1 clients get chunks if the length is unknown, so that they can detect a truncated response. */
export function framingFor(request: RequestHead, response: ResponseHead): ResponseOptions['framing'] {
  if (response.body >= 0) return 'length'
  if (request.minor === 0) return 'close'
  return response.body === chunked || response.body === untilClose ? 'chunked' : 'length'
}
