import { expect, test } from 'vitest'
import { chooseEncoding } from './compress.ts'
import { readFields, readResponseHead } from './message.ts'

const request = (...accepted: string[]) => ({
  fields: readFields(
    accepted.map((value) => `Accept-Encoding: ${value}`),
    0,
  ),
})
const answer = (lines: string[], status = 200) =>
  readResponseHead([`HTTP/1.1 ${status} OK`, ...lines].join('\r\n'), true)
const page = ['Content-Type: text/html; charset=utf-8', 'Content-Length: 5000']

test.each([
  [['gzip, deflate, br'], 'br'],
  [['gzip, deflate'], 'gzip'],
  [['gzip', 'br'], 'br'],
  [['GZIP;q=1.0, br ; q=0.5'], 'gzip'],
  [['br;q=0, *'], 'gzip'],
  [['*'], 'br'],
  [['br;q=0, gzip;q=0'], undefined],
  [['identity, gzip;q=0.5'], undefined],
  [['gzip;q=nonsense'], 'gzip'],
  [['zstd, ,'], undefined],
  [[], undefined],
] as const)('a client that accepts %j gets %j', (accepted, encoding) => {
  expect(chooseEncoding(request(...accepted), answer(page)).encoding).toBe(encoding)
})

test.each([
  'text/plain',
  'TEXT/CSS',
  'application/json',
  'application/problem+json; a=b',
  'application/x-javascript',
  'application/atom+xml',
  'application/wasm',
  'image/svg+xml',
  'font/ttf',
])('%s is compressed', (type) => {
  expect(chooseEncoding(request('gzip'), answer([`Content-Type: ${type}`])).encoding).toBe('gzip')
})

test.each<[string[], number?]>([
  [['Content-Type: image/png']],
  [['Content-Type: application/grpc']],
  [['Content-Type: application/jsonish']],
  [[]],
  [['Content-Type: text/html', 'Content-Length: 1023']],
  [[...page, 'Content-Encoding: none']],
  [[...page, 'Cache-Control: public, No-Transform']],
  [[...page, 'Content-Range: bytes 0-4999/10000'], 206],
])('%j is not compressed', (lines, status) => {
  const given = answer(lines, status)
  expect(chooseEncoding(request('gzip'), given)).toEqual({ head: given, encoding: undefined })
})

test('the head of a compressed response describes its body', () => {
  const lines = [...page, 'ETag: "1"', 'Accept-Ranges: bytes', 'Vary: Origin', 'X-Other: 2']
  const { head } = chooseEncoding(request('gzip'), answer(lines))
  const pairs = head.fields.flatMap((value, index) => (index % 3 === 1 ? [[value, head.fields[index + 1]]] : []))
  expect(pairs).toEqual([
    ['content-encoding', 'gzip'],
    ['content-type', 'text/html; charset=utf-8'],
    ['content-length', '5000'],
    ['etag', 'W/"1"'],
    ['vary', 'Origin'],
    ['x-other', '2'],
    ['vary', 'Accept-Encoding'],
  ])
  expect(head.body).toBeLessThan(0)
})

test('Vary is added once, also when the response is not compressed', () => {
  const fields = (lines: string[]) => chooseEncoding(request(), answer([...page, ...lines])).head.fields
  expect(fields([]).slice(-3)).toEqual(['Vary', 'vary', 'Accept-Encoding'])
  for (const vary of ['Vary: *', 'Vary: origin, accept-encoding']) expect(fields([vary])).toHaveLength(9)
})
