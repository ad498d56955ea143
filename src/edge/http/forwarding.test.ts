import fc from 'fast-check'
import { expect, test } from 'vitest'
import { appResponseText, framingFor, interimText, requestText, responseText } from './forwarded-head.ts'
import { BadMessage, readRequestHead, readResponseHead } from './message.ts'
import { splitList, trimSpace } from './syntax.ts'

const peer = { address: '192.0.2.7', secure: true, port: 443, trusted: false }
const options = { id: 'x-1', withoutAuthorization: false, keepAlive: true, added: '' }

const byte = fc.integer({ min: 0, max: 255 }).map((code) => String.fromCharCode(code))
const noise = fc.string({ unit: byte, maxLength: 6 })
const space = fc.constantFrom('', ' ', '\t', ' \t ', '\x0b', '\x0c', '\xa0', '\x85', '\r', '\n', '\0')
const oneOf = (...texts: string[]) => fc.oneof({ weight: 5, arbitrary: fc.constantFrom(...texts) }, noise)
const name = oneOf(
  'Content-Length',
  'transfer-encoding',
  'Connection',
  'Upgrade',
  'Host',
  'X-A',
  'x-b',
  'Fly-Client-IP',
  'X-Forwarded-For',
  'Fly_Region',
  'TE',
  'Authorization',
)
const value = oneOf(
  '5',
  '05',
  '0',
  'chunked',
  'close',
  'keep-alive, X-A',
  'upgrade',
  'websocket',
  'h2c',
  'a.test',
  '\xff',
)
const line = fc.tuple(name, fc.constantFrom(':', ': ', ' :', ''), space, value, space).map((parts) => parts.join(''))
const lines = fc.array(line, { maxLength: 6 })
const lineEnd = fc.oneof({ weight: 20, arbitrary: fc.constant('\r\n') }, fc.constantFrom('\n', '\r', '\r\n ', '\r\r\n'))

const request = fc
  .tuple(oneOf('GET', 'POST', 'OPTIONS'), oneOf('/', '/a?b', '*', 'http://b.test/x', '//x', '/#'), lines, lineEnd)
  .map(([method, target, given, end]) => [`${method} ${target} HTTP/1.1`, 'Host: a.test', ...given].join(end))

/** Undefined when it is refused. */
function attempt<T>(read: () => T): T | undefined {
  try {
    return read()
  } catch (error) {
    if (error instanceof BadMessage) return undefined
    throw error
  }
}

/** The fields that the edge passes on unchanged. */
function plainFields(fields: string[], hopFields: string[] = []): string[] {
  const kept: string[] = []
  for (let index = 1; index < fields.length; index += 3) {
    const isPlain = /^x-[a-z]$/.test(fields[index]!) && !hopFields.includes(fields[index]!)
    if (isPlain) kept.push(`${fields[index]}: ${fields[index + 1]}`)
  }
  return kept
}

const withoutEnd = (text: string): string => {
  expect(text.endsWith('\r\n\r\n')).toBe(true)
  expect(text.indexOf('\r\n\r\n')).toBe(text.length - 4)
  expect(text.replaceAll('\r\n', '')).not.toMatch(/[\r\n\0]/)
  return text.slice(0, -4)
}

test('a request that is forwarded is read again as the same request', () => {
  let forwarded = 0
  fc.assert(
    fc.property(request, (text) => {
      const head = attempt(() => readRequestHead(text))
      if (!head) return
      forwarded += 1
      const again = readRequestHead(withoutEnd(requestText(head, peer, options)))
      const { method, target, authority, host, body, framed, upgrade } = head
      expect(again).toMatchObject({ method, target, authority, host, body, framed, upgrade })
      expect(plainFields(again.fields)).toEqual(plainFields(head.fields, head.hopFields))
      const once = ['host', 'content-length', 'transfer-encoding', 'fly-client-ip', 'x-forwarded-for', 'via']
      for (const single of once) {
        expect(again.fields.filter((field, index) => index % 3 === 1 && field === single).length).toBeLessThan(2)
      }
      expect(again.fields).not.toContain('Fly_Region')
    }),
    { numRuns: 5_000 },
  )
  expect(forwarded).toBeGreaterThan(100)
})

const response = fc
  .tuple(oneOf('HTTP/1.1', 'HTTP/1.0'), oneOf('200 OK', '204 ', '304 x', '500', '100 Continue'), lines, lineEnd)
  .map(([version, status, given, end]) => [`${version} ${status}`, ...given].join(end))

test('a response that is forwarded is read again as the same response', () => {
  let forwarded = 0
  const asked = readRequestHead('GET / HTTP/1.1\r\nHost: a.test')
  fc.assert(
    fc.property(response, (text) => {
      const head = attempt(() => readResponseHead(text, true))
      if (!head) return
      forwarded += 1
      const framing = framingFor(asked, head)
      const written = { id: 'x', keepAlive: true, framing }
      for (const sent of [responseText(head, written), appResponseText(head, written, undefined), interimText(head)]) {
        const again = readResponseHead(withoutEnd(sent), true)
        expect(again.status).toBe(head.status)
        if (!sent.includes('Via:')) continue
        expect(plainFields(again.fields)).toEqual(plainFields(head.fields, head.hopFields))
        if (framing === 'length' && head.framed) expect(again.body).toBe(head.body)
      }
    }),
    { numRuns: 3_000 },
  )
  expect(forwarded).toBeGreaterThan(100)
})

test('only spaces and tabs are whitespace', () => {
  expect(trimSpace(' \t a b\t ')).toBe('a b')
  expect(trimSpace(' \t ')).toBe('')
  for (const other of ['\x0b', '\x0c', '\xa0', '\u2003', '\ufeff', '\n', '\r', '\x85', '\u3000']) {
    expect(trimSpace(`${other}a${other}`)).toBe(`${other}a${other}`)
  }
  expect(splitList(' a ,\tb,, c')).toEqual(['a', 'b', 'c'])
})
