// Sends requests that parsers could read in different ways. Each must be refused, or reach the program in one form. The
// program is read by the parser of Node.js, which shares no code with that of the edge.
import type { IncomingMessage, ServerResponse } from 'node:http'
import { beforeEach, expect, test } from 'vitest'
import { type Backend, useEdge } from '../support/edge.ts'

const edge = useEdge()

interface Seen {
  url: string
  host: string
  via: string
  length: string | undefined
  encoding: string | undefined
  body: string
}

let seen: Seen[]
let backend: Backend
let host: string

function record(request: IncomingMessage, reply: ServerResponse): void {
  const { headers } = request
  const one: Seen = {
    url: request.url!,
    host: headers.host ?? '',
    via: headers.via ?? '',
    length: headers['content-length'],
    encoding: headers['transfer-encoding'],
    body: '',
  }
  seen.push(one)
  request.setEncoding('latin1')
  request.on('error', () => {})
  request.on('data', (text) => {
    one.body += text
  })
  request.on('end', () => reply.end('ok'))
}

beforeEach(async () => {
  seen = []
  backend = await edge.backend(record)
  host = await edge.sandbox({ port: backend.port })
})

const hidden = () => `GET /hidden HTTP/1.1\r\nHost: ${host}\r\n\r\n`
const chunks = '5\r\nhello\r\n0\r\n\r\n'

/** The start of a request that has a Host field already. */
const post = (rest: string) => `POST / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n${rest}`

const spaces: [string, string][] = [
  ['a vertical tab', '\x0b'],
  ['a form feed', '\x0c'],
  ['a no-break space', '\xa0'],
  ['a next line character', '\x85'],
  ['a zero byte', '\0'],
  ['a carriage return', '\r'],
  ['a line feed', '\n'],
  ['a byte order mark', '\xef\xbb\xbf'],
  ['an ideographic space', '\xe3\x80\x80'],
]

const framings: [string, (space: string) => string][] = [
  ['Transfer-Encoding after', (space) => `Transfer-Encoding:${space}chunked\r\n\r\n${chunks}`],
  ['Transfer-Encoding before', (space) => `Transfer-Encoding: chunked${space}\r\n\r\n${chunks}`],
  ['Content-Length after', (space) => `Content-Length:${space}5\r\n\r\nhello`],
  ['Content-Length before', (space) => `Content-Length: 5${space}\r\n\r\nhello`],
  ['the name of Transfer-Encoding after', (space) => `Transfer-Encoding${space}: chunked\r\n\r\n${chunks}`],
  ['the name of Transfer-Encoding before', (space) => `${space}Transfer-Encoding: chunked\r\n\r\n${chunks}`],
  ['the name of Content-Length after', (space) => `Content-Length${space}: 5\r\n\r\nhello`],
]

const whitespace = framings.flatMap(([place, write]) =>
  spaces.map(([name, space]): [string, () => string] => [`${place} ${name}`, () => post(write(space))]),
)

const refused: [string, () => string][] = [
  ...whitespace,
  ['a length with a sign', () => post('Content-Length: +5\r\n\r\nhello')],
  ['a negative length', () => post('Content-Length: -5\r\n\r\nhello')],
  ['a hexadecimal length', () => post('Content-Length: 0x5\r\n\r\nhello')],
  ['a length with an exponent', () => post('Content-Length: 5e0\r\n\r\nhello')],
  ['a length with a fraction', () => post('Content-Length: 5.0\r\n\r\nhello')],
  ['a length with an underscore', () => post('Content-Length: 1_0\r\n\r\nhello')],
  ['a length in octal', () => post('Content-Length: 0o5\r\n\r\nhello')],
  ['an empty length', () => post('Content-Length:\r\n\r\nhello')],
  ['a list of equal lengths', () => post('Content-Length: 5, 5\r\n\r\nhello')],
  ['two equal lengths', () => post('Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello')],
  ['two different lengths', () => post('Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!')],
  ['a length beyond 64 bits', () => post('Content-Length: 18446744073709551621\r\n\r\nhello')],
  ['a length in other digits', () => post('Content-Length: \xb2\r\n\r\nhe')],
  ['a quoted length', () => post('Content-Length: "5"\r\n\r\nhello')],
  ['an infinite length', () => post('Content-Length: Infinity\r\n\r\nhello')],
  ['a length and chunks', () => post(`Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}`)],
  ['chunks and a length', () => post(`Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n${chunks}`)],
  ['chunks twice', () => post(`Transfer-Encoding: chunked, chunked\r\n\r\n${chunks}`)],
  [
    'two Transfer-Encoding fields',
    () => post(`Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n${chunks}`),
  ],
  ['identity before chunks', () => post(`Transfer-Encoding: identity, chunked\r\n\r\n${chunks}`)],
  ['chunks before identity', () => post(`Transfer-Encoding: chunked, identity\r\n\r\n${chunks}`)],
  ['an encoding with a parameter', () => post(`Transfer-Encoding: chunked;q=1\r\n\r\n${chunks}`)],
  ['a quoted encoding', () => post(`Transfer-Encoding: "chunked"\r\n\r\n${chunks}`)],
  ['an empty encoding', () => post(`Transfer-Encoding:\r\n\r\n${chunks}`)],
  ['an encoding with a comma', () => post(`Transfer-Encoding: ,chunked\r\n\r\n${chunks}`)],
  ['an encoding with a Kelvin sign', () => post(`Transfer-Encoding: chun\xe2\x84\xaaed\r\n\r\n${chunks}`)],
  ['an encoding with a long s', () => post(`Tran\xc5\xbffer-Encoding: chunked\r\n\r\n${chunks}`)],
  ['an encoding in HTTP/1.0', () => `POST / HTTP/1.0\r\nHost: ${host}\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}`],
  ['a folded encoding', () => post(`Transfer-Encoding:\r\n chunked\r\n\r\n${chunks}`)],
  ['a folded line with a tab', () => post(`X: y\r\n\tTransfer-Encoding: chunked\r\n\r\n${chunks}`)],
  ['a folded line at first', () => `GET / HTTP/1.1\r\n Host: ${host}\r\n\r\n`],
  ['a line feed before a field', () => post(`X: y\nTransfer-Encoding: chunked\r\n\r\n${chunks}`)],
  ['a carriage return before a field', () => post(`X: y\rTransfer-Encoding: chunked\r\n\r\n${chunks}`)],
  ['two carriage returns at the end of a line', () => post(`X: y\r\r\nContent-Length: 5\r\n\r\nhello`)],
  ['a carriage return in a value', () => post('X: y\rz\r\n\r\n')],
  ['a field without a name', () => post(': y\r\n\r\n')],
  ['a field name in quotes', () => post(`"Transfer-Encoding": chunked\r\n\r\n${chunks}`)],
  ['a field name with a letter beyond ASCII', () => post('X\xe9: y\r\n\r\n')],
  ['two Host fields', () => `GET / HTTP/1.1\r\nHost: ${host}\r\nHost: ${host}\r\n\r\n`],
  ['two different Host fields', () => `GET / HTTP/1.1\r\nHost: other\r\nHost: ${host}\r\n\r\n`],
  ['a list of hosts', () => `GET / HTTP/1.1\r\nHost: ${host}, other\r\n\r\n`],
  ['a host with a path', () => `GET / HTTP/1.1\r\nHost: ${host}/x\r\n\r\n`],
  ['a host with a user', () => `GET / HTTP/1.1\r\nHost: other@${host}\r\n\r\n`],
  ['a host with a space', () => `GET / HTTP/1.1\r\nHost: ${host} other\r\n\r\n`],
  ['a host with a no-break space', () => `GET / HTTP/1.1\r\nHost: \xa0${host}\r\n\r\n`],
  ['a host with a percent sign', () => `GET / HTTP/1.1\r\nHost: ${host}%00\r\n\r\n`],
  ['a port that is no number', () => `GET / HTTP/1.1\r\nHost: ${host}:8a\r\n\r\n`],
  ['a port with a sign', () => `GET / HTTP/1.1\r\nHost: ${host}:+80\r\n\r\n`],
  ['a port above 65535', () => `GET / HTTP/1.1\r\nHost: ${host}:65536\r\n\r\n`],
  ['two ports', () => `GET / HTTP/1.1\r\nHost: ${host}:80:80\r\n\r\n`],
  ['an absolute target with a user', () => `GET http://a@${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['an absolute target without a host', () => `GET http:///x HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['an absolute target with a malformed Host field', () => `GET http://${host}/ HTTP/1.1\r\nHost: a b\r\n\r\n`],
  ['an absolute target with another scheme', () => `GET ftp://${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a target without a slash', () => `GET x HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['an asterisk for GET', () => `GET * HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a target with a space', () => `GET /a b HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a target with a tab', () => `GET /a\tb HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a target with a fragment', () => `GET /a#b HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a target with a zero byte', () => `GET /a\0b HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a tab after the method', () => `GET\t/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a space before the method', () => ` GET / HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a space after the version', () => `GET / HTTP/1.1 \r\nHost: ${host}\r\n\r\n`],
  ['a vertical tab after the version', () => `GET / HTTP/1.1\x0b\r\nHost: ${host}\r\n\r\n`],
  ['a version in lowercase', () => `GET / http/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a longer version', () => `GET / HTTP/1.10\r\nHost: ${host}\r\n\r\n`],
  ['no version', () => `GET /\r\nHost: ${host}\r\n\r\n`],
  ['a method with a colon', () => `GE:T / HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
  ['a malformed Connection field', () => post('Connection: close \x0bfoo\r\n\r\n')],
  ['a Connection field with a space inside', () => post('Connection: transfer encoding\r\n\r\n')],
  ['a malformed Upgrade field', () => post('Connection: upgrade\r\nUpgrade: web socket\r\n\r\n')],
  ['two Authorization fields', () => post('Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n')],
  ['a chunk size with a sign', () => post(`Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n`)],
  ['a hexadecimal prefix in a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n`)],
  ['an underscore in a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n0_5\r\nhello\r\n0\r\n\r\n`)],
  ['a vertical tab after a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n5\x0b\r\nhello\r\n0\r\n\r\n`)],
  ['a no-break space after a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n5\xa0\r\nhello\r\n0\r\n\r\n`)],
  ['a space before a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n`)],
  ['no chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n;x\r\nhello\r\n0\r\n\r\n`)],
  [
    'a chunk size beyond 64 bits',
    () => post(`Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n`),
  ],
  ['a line feed after a chunk size', () => post(`Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n`)],
  ['a line feed in a chunk extension', () => post(`Transfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n`)],
  [
    'a carriage return in a chunk extension',
    () => post(`Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n`),
  ],
  ['a zero byte in a chunk extension', () => post(`Transfer-Encoding: chunked\r\n\r\n5;a\0\r\nhello\r\n0\r\n\r\n`)],
  ['a line feed after a chunk', () => post(`Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n`)],
  ['a chunk that is longer than its size', () => post(`Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n`)],
  ['a folded trailer', () => post(`Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n z\r\n\r\n`)],
  ['a trailer with a space before the colon', () => post(`Transfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n`)],
]

test.each(refused)('refused: %s', async (_name, write) => {
  const answer = await edge.raw(write() + hidden())
  const statuses = [...answer.matchAll(/HTTP\/1\.1 (\d+) /g)].map((found) => Number(found[1]))
  expect(statuses).toHaveLength(1)
  expect([400, 501, 505]).toContain(statuses[0])
  // A program may have seen the start of a request whose body turned out to be malformed, but never one that was hidden.
  expect(seen.filter(({ url, via }) => url === '/hidden' || via !== '1.1 berth')).toEqual([])
})

const forwarded: [string, () => string, Partial<Seen>][] = [
  ['a tab around a length', () => post('Content-Length:\t5\t\r\n\r\nhello'), { length: '5', body: 'hello' }],
  ['zeros before a length', () => post('Content-Length: 0005\r\n\r\nhello'), { length: '5', body: 'hello' }],
  ['no space after the colon', () => post('Content-Length:5\r\n\r\nhello'), { length: '5', body: 'hello' }],
  [
    'chunks in capitals',
    () => post(`TRANSFER-ENCODING: CHUNKED\r\n\r\n${chunks}`),
    { encoding: 'chunked', body: 'hello' },
  ],
  [
    'chunk extensions',
    () => post('Transfer-Encoding: chunked\r\n\r\n05 ;a="\xe9;"\r\nhello\r\n00\r\n\r\n'),
    { encoding: 'chunked', body: 'hello' },
  ],
  [
    'a hidden request in a chunk',
    () => post(`Transfer-Encoding: chunked\r\n\r\n${hidden().length.toString(16)}\r\n${hidden()}\r\n0\r\n\r\n`),
    { encoding: 'chunked' },
  ],
  ['a hidden request in a body', () => post(`Content-Length: ${hidden().length}\r\n\r\n${hidden()}`), {}],
  [
    'trailers that frame a message',
    () => post(`Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n`),
    { length: undefined, encoding: 'chunked', body: '' },
  ],
  ['an underscore for a dash', () => post('Content_Length: 5\r\nTransfer_Encoding: chunked\r\n\r\n'), { body: '' }],
  [
    'a length that Connection names',
    () => post('Connection: content-length\r\nContent-Length: 5\r\n\r\nhello'),
    { length: '5', body: 'hello' },
  ],
  [
    'an encoding that Connection names',
    () => post(`Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n${chunks}`),
    { encoding: 'chunked', body: 'hello' },
  ],
  ['an upgrade to HTTP/2', () => post('Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\n\r\n'), { body: '' }],
  ['an upgrade to TLS', () => post('Connection: upgrade\r\nUpgrade: foo, TLS/1.0\r\n\r\n'), { body: '' }],
  [
    'an absolute target',
    () => `GET HTTP://${host}?x HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n`,
    { url: '/?x' },
  ],
  ['a target with two slashes', () => `GET //x HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`, { url: '//x' }],
  ['empty lines before a request', () => `\r\n\r\nGET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`, {}],
  ['letters beyond ASCII in a value', () => post('X: \xa0\x85\xff\r\n\r\n'), { body: '' }],
]

test.each(forwarded)('forwarded in one form: %s', async (_name, write, expected) => {
  const answer = await edge.raw(write())
  expect(answer).toMatch(/^HTTP\/1.1 200 /)
  expect(seen).toHaveLength(1)
  expect(seen[0]).toMatchObject({ url: '/', host, via: '1.1 berth', ...expected })
  expect([seen[0]!.length, seen[0]!.encoding].filter((framing) => framing !== undefined).length).toBeLessThanOrEqual(1)
})

test('the tables have enough forms', () => {
  expect(refused.length + forwarded.length).toBeGreaterThan(150)
  expect(edge.errors).toEqual([])
})
