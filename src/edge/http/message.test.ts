import { expect, test } from 'vitest'
import { bodyReader } from './body.ts'
import { framingFor, requestText, responseText } from './forwarded-head.ts'
import { BadMessage, chunked, readRequestHead, readResponseHead, untilClose } from './message.ts'

const head = (...lines: string[]) => readRequestHead(['GET / HTTP/1.1', 'Host: a.test', ...lines].join('\r\n'))

test.each([
  ['a.test', 'a.test'],
  ['A.Test:8080', 'a.test'],
  ['a.test.', 'a.test'],
  ['[::1]:80', '[::1]'],
  ['127.0.0.1', '127.0.0.1'],
])('the host of %s is %s', (sent, host) => {
  expect(readRequestHead(`GET / HTTP/1.1\r\nHost: ${sent}`).host).toBe(host)
})

test.each(['', ' ', 'a b', 'a/b', 'a@b', 'a:b', 'a:123456', '-', 'ä'])('a Host of "%s" is rejected', (sent) => {
  expect(() => readRequestHead(`GET / HTTP/1.1\r\nHost: ${sent}`)).toThrow(BadMessage)
})

test('a request without Content-Length or Transfer-Encoding has no body', () => {
  expect(head().body).toBe(0)
  expect(head('Content-Length: 12').body).toBe(12)
  expect(head('Transfer-Encoding: Chunked').body).toBe(chunked)
})

test('an HTTP/1.0 connection is kept only if the client asks for it', () => {
  expect(readRequestHead('GET / HTTP/1.0').keepAlive).toBe(false)
  expect(readRequestHead('GET / HTTP/1.0\r\nConnection: keep-alive').keepAlive).toBe(true)
  expect(head('Connection: Keep-Alive, close').keepAlive).toBe(false)
})

test('Upgrade counts only if Connection names it, and never for HTTP/2', () => {
  expect(head('Connection: keep-alive, Upgrade', 'Upgrade: websocket').upgrade).toBe('websocket')
  expect(head('Upgrade: websocket').upgrade).toBeUndefined()
  expect(head('Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c').upgrade).toBeUndefined()
})

test('the head, the status and the request method determine where a response ends', () => {
  const of = (text: string, hasBody = true) => readResponseHead(text, hasBody).body
  expect(of('HTTP/1.1 200 OK\r\nContent-Length: 3')).toBe(3)
  expect(of('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked')).toBe(chunked)
  expect(of('HTTP/1.1 200 OK')).toBe(untilClose)
  expect(of('HTTP/1.1 200 OK\r\nContent-Length: 3', false)).toBe(0)
  expect(of('HTTP/1.1 304 Not Modified\r\nContent-Length: 3')).toBe(0)
  expect(of('HTTP/1.1 204 No Content')).toBe(0)
  expect(readResponseHead('HTTP/1.1 200 ', true).reason).toBe('')
})

function read(body: string, pieceBytes: number): { text: string; rest: string; done: boolean; trailer: string } {
  const reader = bodyReader(chunked)
  const bytes = Buffer.from(body, 'latin1')
  let text = ''
  let at = 0
  while (at < bytes.length && !reader.done) {
    const piece = bytes.subarray(at, at + pieceBytes)
    at += reader.take(piece, (found) => {
      text += found.toString('latin1')
    })
  }
  return { text, rest: bytes.toString('latin1', at), done: reader.done, trailer: reader.trailer }
}

test.each([1, 2, 3, 7, 1000])('chunks are read from pieces of %i bytes', (pieceBytes) => {
  const body = '5\r\nhello\r\n00b;name="x"\r\n, the world\r\n0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\nGET /'
  expect(read(body, pieceBytes)).toEqual({
    text: 'hello, the world',
    rest: 'GET /',
    done: true,
    trailer: 'X-Sum: 7\r\n',
  })
})

test.each([
  '5\nhello\r\n',
  ' 5\r\nhello',
  '5 5\r\n',
  '\r\n',
  '5\r\nhelloX\r\n',
  '5\r\nhello\n',
  '0\r\nX : y\r\n\r\n',
  'g\r\n',
])('the chunked body %j is rejected', (body) => expect(() => read(body, 1000)).toThrow(BadMessage))

const peer = { address: '192.0.2.7', secure: true, port: 443, trusted: false }
const options = { id: 'x-1', withoutAuthorization: false, keepAlive: true, added: '' }

test('an untrusted client cannot set the fields of the edge', () => {
  const lines = [
    'X-Forwarded-For: 1.1.1.1',
    'X-Forwarded-Proto: http',
    'X-Forwarded-Host: evil',
    'Fly-Client-IP: 1.1.1.1',
  ]
  const text = requestText(head(...lines), peer, options)
  expect(text).toContain('X-Forwarded-For: 1.1.1.1, 192.0.2.7\r\n')
  expect(text).toContain('X-Forwarded-Proto: https\r\n')
  expect(text).toContain('X-Forwarded-Host: a.test\r\n')
  expect(text).toContain('Fly-Client-IP: 192.0.2.7\r\n')
})

test('a response of unknown length is chunked for HTTP/1.1 and ends with the connection for HTTP/1.0', () => {
  const response = readResponseHead('HTTP/1.1 200 OK\r\nServer: x', true)
  expect(framingFor(head(), response)).toBe('chunked')
  expect(framingFor(readRequestHead('GET / HTTP/1.0'), response)).toBe('close')
  const text = responseText(response, { id: 'x', keepAlive: true, framing: 'chunked' })
  expect(text).toContain('Server: x\r\nTransfer-Encoding: chunked\r\n')
})
