import fc from 'fast-check'
import { expect, test } from 'vitest'
import { BadReplay, parseReplay, parseReplayJson } from './replay.ts'

test('all parameters of the header form are parsed', () => {
  expect(parseReplay('region=iad')).toMatchObject({ regions: ['iad'], elsewhere: false })
  expect(parseReplay('app=other;instance=4d891de2f66587')).toMatchObject({ app: 'other', instance: '4d891de2f66587' })
  expect(parseReplay('elsewhere=true; state="a;b=\\"c\\""')).toMatchObject({ elsewhere: true, state: 'a;b="c"' })
  expect(parseReplay('prefer_instance=x1;timeout=800ms;fallback=prefer_self;')).toMatchObject({
    preferInstance: 'x1',
    timeoutMs: 800,
    fallback: 'prefer_self',
  })
  expect(parseReplay('region="ams, EU,any"').regions).toEqual(['ams', 'eu', 'any'])
  expect(parseReplay('region=ams,iad;unknown=1').regions).toEqual(['ams', 'iad'])
})

test.each([
  '',
  'state=x',
  'elsewhere=false',
  'instance',
  'instance=a b',
  'app=x;timeout=soon',
  'app=x;timeout=-1s',
  'app=x;fallback=others',
  'state="open',
  'app="a"b',
])('%j is rejected', (text) => {
  expect(() => parseReplay(text)).toThrow(BadReplay)
})

test('the JSON form has the same parameters and a transformation', () => {
  const transform = { path: '/new?x=1', delete_headers: ['cookie'], set_headers: [{ name: 'x-a', value: 'b' }] }
  expect(
    parseReplayJson(JSON.stringify({ app: 'other', region: ['a1', 'b1'], elsewhere: true, transform })),
  ).toMatchObject({
    app: 'other',
    regions: ['a1', 'b1'],
    elsewhere: true,
    transform: { path: '/new?x=1', deleteHeaders: ['cookie'], setHeaders: [{ name: 'x-a', value: 'b' }] },
  })
})

test.each([
  'x',
  '[]',
  'null',
  '{}',
  '{"app":{}}',
  '{"app":"a","transform":{"path":"/a b"}}',
  '{"app":"a","transform":{"path":"/a\\r\\nX: y"}}',
  '{"app":"a","transform":{"set_headers":[{"name":"content-length","value":"1"}]}}',
  '{"app":"a","transform":{"set_headers":[{"name":"x","value":"a\\r\\nb: c"}]}}',
  '{"app":"a","transform":{"set_headers":[{"name":"x: y","value":"a"}]}}',
  '{"app":"a","transform":{"delete_headers":["Host"]}}',
  '{"app":"a","transform":{"delete_headers":"x"}}',
])('%s is rejected', (text) => {
  expect(() => parseReplayJson(text)).toThrow(BadReplay)
})

test('any text is parsed or rejected, and no value contains a line break', () => {
  const word = fc.constantFrom(
    'instance',
    'app',
    'region',
    'state',
    'timeout',
    'elsewhere',
    '=',
    ';',
    '"',
    '\\',
    ',',
    'a',
    '\r\n',
    ' ',
  )
  const text = fc.oneof(
    fc.string({ unit: 'binary' }),
    fc.array(word).map((words) => words.join('')),
  )
  const check = (read: () => object) => {
    try {
      const plain = JSON.stringify(read()).replaceAll('\\\\', '') // an escaped backslash is harmless
      expect(plain).not.toMatch(/\\r|\\n|\\u0000/)
    } catch (error) {
      if (!(error instanceof BadReplay)) throw error
    }
  }
  fc.assert(
    fc.property(text, (value) => {
      check(() => parseReplay(value))
    }),
    { numRuns: 2_000 },
  )
  const json = fc.record(
    { app: text, state: text, region: fc.array(text), transform: fc.anything() },
    { requiredKeys: [] },
  )
  fc.assert(
    fc.property(json, (value) => {
      check(() => parseReplayJson(JSON.stringify(value)))
    }),
    { numRuns: 2_000 },
  )
})
