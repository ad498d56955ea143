// Parses the heads of HTTP/1 messages. Anything that two parsers could interpret differently is rejected, to prevent
// request smuggling. Heads are decoded as Latin-1, in which no other character becomes an ASCII letter in lowercase.

import { splitList, trimSpace } from './syntax.ts'

/** A message that is not forwarded. A client that sent it gets the status. */
export class BadMessage extends Error {
  readonly status: number

  constructor(message: string, status = 400) {
    super(message)
    this.status = status
  }
}

/** Values of `body` for a body in chunks, and for one that ends with the connection. */
export const chunked = -1
export const untilClose = -2

interface Head {
  minor: 0 | 1
  /** Three entries for each field: its name, its name in lowercase, its value. */
  fields: string[]
  /** The length of the body, or `chunked`, or `untilClose`. */
  body: number
  /** The head has a Content-Length or Transfer-Encoding field. */
  framed: boolean
  keepAlive: boolean
  /** Fields that the Connection field names, which are not forwarded. */
  hopFields: string[] | undefined
}

export interface RequestHead extends Head {
  method: string
  /** Begins with a slash, or is an asterisk. */
  target: string
  /** The Host field as sent; empty when an HTTP/1.0 client sent none. */
  authority: string
  /** The host name alone, in lowercase. */
  host: string
  upgrade: string | undefined
  authorization: string | undefined
}

export interface ResponseHead extends Head {
  status: number
  reason: string
}

// A fragment (#) is never sent to a server, and parsers differ in whether it ends the path.
const requestLine = /^([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21\x22\x24-\x7e\x80-\xff]+) HTTP\/(\d)\.(\d)$/
const statusLine = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: ([\t\x20-\x7e\x80-\xff]*))?$/
const token = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const text = /^[\t\x20-\x7e\x80-\xff]*$/
// A host name or a bracketed IPv6 address, with an optional port.
const hostPattern = /^([a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\])\.?(?::(\d{1,5}))?$/
const protocol = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:\/[!#$%&'*+\-.^_`|~0-9A-Za-z]+)?$/
// 15 digits are a petabyte, and a number still represents them exactly.
const lengthPattern = /^\d{1,15}$/

/** Rejects folded lines, spaces before the colon and control characters. */
export function readFields(lines: string[], from: number): string[] {
  const fields: string[] = []
  for (let index = from; index < lines.length; index++) {
    const line = lines[index]!
    const colon = line.indexOf(':')
    const name = line.slice(0, colon)
    if (colon < 1 || !token.test(name)) throw new BadMessage('a header field is malformed')
    const value = trimSpace(line.slice(colon + 1))
    if (!text.test(value)) throw new BadMessage(`the header field ${name} contains invalid characters`)
    fields.push(name, name.toLowerCase(), value)
  }
  return fields
}

/** The value of the first field with this name, which is given in lowercase. */
export function fieldOf({ fields }: Pick<Head, 'fields'>, name: string): string | undefined {
  for (let index = 1; index < fields.length; index += 3) if (fields[index] === name) return fields[index + 1]
  return undefined
}

const maxFields = 200

/** `head` excludes the empty line at its end. */
export function readRequestHead(head: string): RequestHead {
  const lines = head.split('\r\n')
  const first = requestLine.exec(lines[0]!)
  if (!first) throw new BadMessage('the request line is malformed')
  if (first[3] !== '1' || (first[4] !== '1' && first[4] !== '0'))
    throw new BadMessage('only HTTP/1.0 and HTTP/1.1 are supported', 505)
  if (lines.length > maxFields) throw new BadMessage(`more than ${maxFields} header fields`, 431)
  const minor = first[4] === '1' ? 1 : 0
  const request: RequestHead = {
    method: first[1]!,
    target: first[2]!,
    minor,
    fields: readFields(lines, 1),
    body: 0,
    framed: false,
    keepAlive: minor === 1,
    hopFields: undefined,
    authority: '',
    host: '',
    upgrade: undefined,
    authorization: undefined,
  }
  interpretFields(request)
  if (request.method === 'CONNECT') throw new BadMessage('CONNECT is not supported', 405)
  readTarget(request)
  return request
}

function interpretFields(request: RequestHead): void {
  const { fields } = request
  let hosts = 0
  let upgrade: string | undefined
  for (let index = 1; index < fields.length; index += 3) {
    const value = fields[index + 1]!
    switch (fields[index]) {
      case 'host':
        hosts += 1
        request.authority = value
        break
      case 'content-length':
      case 'transfer-encoding':
        readFraming(request, fields[index]!, value)
        break
      case 'connection':
        readConnection(request, value)
        break
      case 'upgrade':
        upgrade = upgrade === undefined ? value : `${upgrade}, ${value}`
        break
      case 'authorization':
        // With two fields, the program might use another one than was checked here.
        if (request.authorization !== undefined) throw new BadMessage('more than one Authorization field')
        request.authorization = value
        break
    }
  }
  if (hosts > 1 || (hosts === 0 && request.minor === 1)) throw new BadMessage('exactly one Host field is required')
  if (upgrade !== undefined && request.hopFields?.includes('upgrade')) request.upgrade = readUpgrade(upgrade)
}

/** After an upgrade to another version of HTTP or to TLS, further requests would bypass all checks. */
function readUpgrade(value: string): string | undefined {
  const protocols = splitList(value)
  if (!protocols.every((name) => protocol.test(name))) throw new BadMessage('the Upgrade field is malformed')
  const isRefused = protocols.some((name) => /^(?:h2c?|http|tls|ssl)(?:\/|$)/i.test(name))
  return isRefused || protocols.length === 0 ? undefined : protocols.join(', ')
}

function readFraming(head: Head, name: string, value: string): void {
  if (head.framed) throw new BadMessage('more than one Content-Length or Transfer-Encoding field')
  head.framed = true
  if (name === 'content-length') {
    if (!lengthPattern.test(value)) throw new BadMessage('Content-Length is not a number')
    head.body = Number(value)
    return
  }
  if (head.minor === 0) throw new BadMessage('Transfer-Encoding is not part of HTTP/1.0')
  if (value.toLowerCase() !== 'chunked') throw new BadMessage('the only supported Transfer-Encoding is chunked', 501)
  head.body = chunked
}

function readConnection(head: Head, value: string): void {
  const lower = value.toLowerCase()
  if (lower === 'keep-alive') {
    if (head.minor === 0) head.keepAlive = true
  } else if (lower === 'close') head.keepAlive = false
  else {
    const names = splitList(lower)
    if (!names.every((name) => token.test(name))) throw new BadMessage('the Connection field is malformed')
    if (names.includes('close')) head.keepAlive = false
    head.hopFields = [...(head.hopFields ?? []), ...names]
  }
}

/** A target in absolute form, as sent to proxies, overrides the Host field. */
function readTarget(request: RequestHead): void {
  const { target } = request
  if (target.charCodeAt(0) !== 0x2f && !(target === '*' && request.method === 'OPTIONS')) {
    const absolute = /^https?:\/\/([^/?]+)(.*)$/i.exec(target)
    if (!absolute) throw new BadMessage('the request target is malformed')
    if (request.authority !== '' && readHost(request.authority) === undefined) {
      throw new BadMessage('the Host field is malformed')
    }
    request.authority = absolute[1]!
    request.target = absolute[2]!.startsWith('/') ? absolute[2]! : `/${absolute[2]}`
  }
  if (request.authority === '' && request.minor === 0) return
  const host = readHost(request.authority)
  if (host === undefined) throw new BadMessage('the Host field is malformed')
  request.host = host
}

/** The host name in an authority such as `shop.example.com:443`, in lowercase. Undefined if it is malformed. */
export function readHost(authority: string): string | undefined {
  const [, host, port = '0'] = hostPattern.exec(authority.toLowerCase()) ?? []
  return Number(port) <= 65_535 ? host : undefined
}

/**
 * `hasBody` is false for responses to HEAD requests. Lines may end with a line feed alone: servers that pass on the output
 * of CGI programs, such as httpd of busybox, write them so. They reach the client with the line ends of HTTP.
 */
export function readResponseHead(head: string, hasBody: boolean): ResponseHead {
  const lines = head.split(/\r?\n/)
  const first = statusLine.exec(lines[0]!)
  if (!first) throw new BadMessage('the status line is malformed', 502)
  const status = Number(first[2])
  const response: ResponseHead = {
    minor: first[1] === '1' ? 1 : 0,
    status,
    reason: first[3] ?? '',
    fields: readFields(lines, 1),
    body: untilClose,
    framed: false,
    keepAlive: first[1] === '1',
    hopFields: undefined,
  }
  const { fields } = response
  for (let index = 1; index < fields.length; index += 3) {
    const name = fields[index]!
    if (name === 'content-length' || name === 'transfer-encoding') readFraming(response, name, fields[index + 1]!)
    else if (name === 'connection') readConnection(response, fields[index + 1]!)
  }
  if (!hasBody || status < 200 || status === 204 || status === 304) response.body = 0
  if (response.body === untilClose) response.keepAlive = false
  return response
}
