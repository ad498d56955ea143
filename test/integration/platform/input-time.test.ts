// The work for an input grows in proportion to its size: four times the input must not take sixteen times the time. CPU
// time is compared, because other programs on the host do not add to it.
import { expect, test } from 'vitest'
import { listTokens, readCredentials } from '../../../src/api/http/auth.ts'
import { tokenOf } from '../../../src/edge/routing/access.ts'
import { mintMacaroon, readMacaroon } from '../../../src/model/account/macaroon.ts'
import { hostnameText } from '../../../src/model/app/certificate.ts'
import { parseDuration } from '../../../src/model/duration.ts'
import { parseImageReference } from '../../../src/model/image.ts'
import { isDeeperThan } from '../../../src/model/json-depth.ts'
import { readClientMessage, readExecRequest } from '../../../src/model/sandbox/exec.ts'
import { filePattern } from '../../../src/model/sandbox/file-pattern.ts'
import { readSignal } from '../../../src/model/signal.ts'
import { parseTime } from '../../../src/model/time.ts'
import { splitWords } from '../../../src/model/words.ts'
import { usePlatform } from '../../support/platform.ts'

const small = 10_000
const large = 4 * small

function cpuMs(work: () => unknown): number {
  const before = process.cpuUsage()
  try {
    work()
  } catch {
    // A refusal is as good as a result.
  }
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

/** The least of several measurements, because the first ones include compilation and some include garbage collection. */
const measure = (work: () => unknown) => Math.min(...Array.from({ length: 3 }, () => cpuMs(work)))

const secret = Buffer.alloc(32, 5)
const macaroon = mintMacaroon({ tokenId: 'abc' }, secret)

const parsers: [string, (text: string) => unknown][] = [
  ['splitWords', splitWords],
  ['parseDuration', parseDuration],
  ['isDeeperThan', (text) => isDeeperThan(text, 1e9)],
  ['listTokens', (text) => listTokens(`Bearer ${text}`)],
  ['readCredentials', (text) => readCredentials(`Bearer ${text}`, secret)],
  ['readCredentials of a macaroon', (text) => readCredentials(`FlyV1 ${macaroon},${text},fm2_${text}`, secret)],
  ['readMacaroon', (text) => readMacaroon(`fm2_${text}`)],
  ['token of the edge', (text) => tokenOf(`Bearer ${text}`)],
  ['hostnameText', hostnameText],
  ['parseImageReference', (text) => parseImageReference(text, false)],
  ['readClientMessage', readClientMessage],
  ['readExecRequest', (text) => readExecRequest(new URLSearchParams(text))],
  ['filePattern', (text) => filePattern(text)('some/file.txt')],
  ['readSignal', readSignal],
  ['parseTime', parseTime],
]

// Repeated, these are the shapes on which naive parsers and regular expressions backtrack.
const units = [
  'a',
  '1',
  ' ',
  '\t',
  '"',
  "'",
  '\\',
  '""',
  '\\"',
  '"\\',
  ',',
  '.',
  '/',
  '-',
  'a.',
  'a-',
  'a ',
  'a,',
  'bearer ',
  '*',
  '**/',
  '[',
  '[a',
  '{',
  '[]',
  '=',
  '&',
  'cmd=a&',
  '1h',
  '1.',
  ':',
  '@',
  'fm2_,',
]

test.each(parsers)('%s', (_name, parse) => {
  const slow: string[] = []
  for (const unit of units) {
    for (const end of ['', '!', ' x']) {
      const text = (length: number) => unit.repeat(length / unit.length) + end
      const [short, long] = [text(small), text(large)]
      const [before, after] = [measure(() => parse(short)), measure(() => parse(long))]
      if (after > 10 * before + 20) slow.push(`${JSON.stringify(unit + end)}: ${before} ms, then ${after} ms`)
    }
  }
  expect(slow).toEqual([])
})

const platform = usePlatform()

/** Bodies of up to a megabyte, by the number of items. */
const bodies: [string, string, (items: number) => object][] = [
  ['many unknown keys', '/v1/apps', (n) => Object.fromEntries(Array.from({ length: n }, (_, i) => [`k${i}`, 0]))],
  ['environment', '/v1/apps/shop/machines', (n) => machine({ env: keys(n) })],
  ['metadata', '/v1/apps/shop/machines', (n) => machine({ metadata: keys(n) })],
  [
    'files',
    '/v1/apps/shop/machines',
    (n) => machine({ files: list(n / 4, (i) => ({ guest_path: `/${i}`, raw_value: '' })) }),
  ],
  [
    'mounts',
    '/v1/apps/shop/machines',
    (n) => machine({ mounts: list(n / 4, (i) => ({ volume: `vol_${i}`, path: `/${i}` })) }),
  ],
  ['services', '/v1/apps/shop/machines', (n) => machine({ services: list(n / 8, (i) => service(i)) })],
  ['checks', '/v1/apps/shop/machines', (n) => machine({ checks: keys(n / 8, { type: 'tcp', port: 80 }) })],
  ['words', '/v1/apps/shop/machines', (n) => machine({ init: { cmd: list(n, String) } })],
  ['secrets', '/v1/apps/shop/secrets', (n) => ({ values: keys(n) })],
  ['rules', '/v1/apps/shop/network_policies', (n) => ({ name: 'x', selector: {}, rules: list(n / 4, () => ({})) })],
  ['GraphQL aliases', '/graphql', (n) => ({ query: `{ ${list(n, (i) => `a${i}: viewer { id }`).join(' ')} }` })],
  ['GraphQL nesting', '/graphql', (n) => ({ query: '{ a '.repeat(n) + '}'.repeat(n) })],
  [
    'GraphQL fragments',
    '/graphql',
    (n) => ({ query: `{ id } ${list(n / 4, (i) => `fragment f${i} on App { id }`).join(' ')}` }),
  ],
  ['GraphQL variables', '/graphql', (n) => ({ query: '{ viewer { id } }', variables: keys(n) })],
]

const list = <T>(n: number, make: (i: number) => T) => Array.from({ length: Math.floor(n) }, (_, i) => make(i))
const keys = (n: number, value: unknown = 'x') => Object.fromEntries(list(n, (i) => [`K${i}`, value]))
const machine = (config: object) => ({ config: { image: 'nginx', ...config } })
const service = (i: number) => ({ protocol: 'tcp', internal_port: 80, ports: [{ port: 1000 + i, handlers: ['http'] }] })

async function requestMs(path: string, body: object, token: string): Promise<number> {
  const raw = JSON.stringify(body)
  const before = process.cpuUsage()
  const { status } = await platform.call('POST', path, { raw, token })
  const { user, system } = process.cpuUsage(before)
  expect(status).toBeLessThan(500)
  return (user + system) / 1000
}

test.each(bodies)('a body with %s', async (_name, path, make) => {
  await platform.createApp('shop')
  // A token that may not write: what it sends must not cost more than reading it.
  const token = await platform.createToken('read', 'personal')
  const times: number[] = []
  for (const items of [4_000, 16_000]) {
    const runs = []
    for (let run = 0; run < 4; run++) runs.push(await requestMs(path, make(items), token))
    times.push(Math.min(...runs))
  }
  expect(times[1]).toBeLessThan(10 * times[0]! + 40)
})
