import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { type Access, action, every, wholeApp, wholeOrg, wholePlatform } from './access.ts'
import { type Caveat, isCurrent, maxCaveats, permits, readCaveats } from './caveat.ts'
import { type Packed, pack, unpack } from './msgpack.ts'

const { read, write, create, control, all } = action
const now = 1_000

type Pair = [type: number, body: Packed]

function caveats(...pairs: Pair[]): Caveat[] {
  const found = readCaveats(pairs.map((pair) => unpack(pack(pair)) as Pair))
  if (!found) throw new Error('the caveats were refused')
  return found
}

const allows = (pairs: Pair[], access: Access) => permits(caveats(...pairs), access, now)
const app = (bits: number, more: Partial<Access> = {}): Access => ({ action: bits, org: 1, app: 7, ...more })
const set = (ids: Record<string, number> | Map<number, number>): Packed => [
  ids instanceof Map ? ids : new Map(Object.entries(ids)),
]
const apps = (...entries: [number, number][]): Pair => [3, set(new Map(entries))]
const machines = (ids: Record<string, number>): Pair => [7, set(ids)]
const ifPresent = (inner: Pair[], otherwise: number): Pair => [13, [inner.flat(1), otherwise]]
const commands = (...list: [args: string[], exact: boolean][]): Pair => [27, list]

describe('a caveat', () => {
  test.each<[string, Pair[], Access, boolean]>([
    ['about an organization permits it', [[0, [1, all]]], app(write), true],
    ['about an organization refuses others', [[0, [2, all]]], app(read), false],
    ['about an organization refuses actions beyond its mask', [[0, [1, read]]], app(write), false],
    ['about an organization refuses what concerns every organization', [[0, [1, all]]], wholePlatform(read), false],
    ['about an organization refuses what concerns none', [[0, [1, all]]], { action: read }, false],
    ['with the id 0 permits every organization', [[0, [0, read]]], wholePlatform(read), true],
    ['about apps permits them', [apps([7, all])], wholeApp({ org: 1, app: 7 }, write), true],
    ['about apps refuses others', [apps([8, all])], app(read), false],
    ['about apps refuses a new one', [apps([7, all])], app(create, { app: 0 }), false],
    ['about apps refuses the whole organization', [apps([7, all])], wholeOrg(1, read), false],
    ['about apps refuses what is no app', [apps([7, all])], { action: read, org: 1, feature: 'postgres' }, false],
    ['about no apps refuses all', [apps()], app(read), false],
    ['with a wildcard permits every app', [apps([0, read])], wholeOrg(1, read), true],
    ['with a wildcard permits no more than its mask', [apps([0, read])], app(write), false],
    ['about machines permits them', [machines({ m1: control })], app(control, { machine: 'm1' }), true],
    ['about machines refuses others', [machines({ m1: all })], app(read, { machine: 'm2' }), false],
    ['about machines refuses the whole app', [machines({ m1: all })], wholeApp({ org: 1, app: 7 }, read), false],
    [
      'about machines does not take an id for everything',
      [machines({ [every]: all })],
      app(read, { machine: every }),
      false,
    ],
    ['about volumes permits them', [[2, set({ v: read })]], app(read, { volume: 'v' }), true],
    ['about a feature permits it', [[5, set({ postgres: read })]], { action: read, org: 1, feature: 'postgres' }, true],
    ['about a feature refuses apps', [[5, set({ postgres: all })]], app(read), false],
    ['about clusters permits them', [[16, set({ c: all })]], { action: write, org: 1, cluster: 'c' }, true],
    ['about mutations permits them', [[6, [['setSecrets']]]], app(write, { mutation: 'setSecrets' }), true],
    ['about mutations refuses others', [[6, [['setSecrets']]]], app(write, { mutation: 'deleteApp' }), false],
    ['about mutations refuses queries and other requests', [[6, [['setSecrets']]]], app(read), false],
    ['about actions refuses others', [[26, read]], app(write), false],
    ['about time permits while it lasts', [[4, [now, now]]], app(all), true],
    ['about time refuses before it', [[4, [now + 1, now + 9]]], app(read), false],
    ['about time refuses after it', [[4, [0, now - 1]]], app(read), false],
    ['about roles permits what members may do', [[22, []]], app(all), true],
    ['about roles refuses what concerns the organization as a whole', [[22, []]], wholeOrg(1, read), false],
    ['about roles permits administrators everything', [[30, 0xffff_ffff]], wholeOrg(1, all), true],
    ['about a user restricts nothing', [[10, [5]]], wholePlatform(all), true],
    [
      'of a third party permits nothing',
      [[11, ['https://auth.example', Buffer.of(1), Buffer.of(2)]]],
      app(read),
      false,
    ],
    ['about the machine that asks permits nothing', [[15, ['m1']]], app(read), false],
    ['does not permit what another one refuses', [apps([7, all]), [26, read]], app(write), false],
  ])('%s', (_name, pairs, access, isPermitted) => {
    expect(allows(pairs, access)).toBe(isPermitted)
  })

  test.each<[string[] | undefined, number, boolean]>([
    [['ls'], control, true],
    [['ls', '-l'], control, false],
    [['cat', '/a'], control, true],
    [['cat', '/a', '/b'], control, true],
    [['cat'], control, false],
    [[], control, false],
    [undefined, control, false],
    [undefined, write, false],
    [undefined, read, true],
  ])('about commands, as flyctl writes it, decides about %j with action %d', (command, bits, isPermitted) => {
    const pairs = [ifPresent([commands([['ls'], true], [['cat', '/a'], false])], read)]
    expect(allows(pairs, app(bits, { machine: 'm1', ...(command && { command }) }))).toBe(isPermitted)
  })

  test('with conditions applies all that concern the access, and otherwise its mask', () => {
    const pairs = [ifPresent([apps([7, all]), machines({ m1: read })], read)]
    expect(allows(pairs, app(write))).toBe(true)
    expect(allows(pairs, app(read, { machine: 'm1' }))).toBe(true)
    expect(allows(pairs, app(write, { machine: 'm1' }))).toBe(false)
    expect(allows(pairs, app(read, { machine: 'm2' }))).toBe(false)
    expect(allows(pairs, { action: read, org: 1, feature: 'postgres' })).toBe(true)
    expect(allows(pairs, { action: write, org: 1, feature: 'postgres' })).toBe(false)
    expect(allows(pairs, wholeOrg(1, read))).toBe(false)
  })
})

describe('caveats are refused', () => {
  const ofDepth = (depth: number): Pair => (depth === 0 ? [26, read] : ifPresent([ofDepth(depth - 1)], read))
  test.each<[string, Pair[]]>([
    ['of an unknown type', [[200, []]]],
    ['of an unknown type inside a condition', [ifPresent([[200, []]], all)]],
    ['of types that only proofs have', [[23, 5]]],
    ['with too few fields', [[0, [1]]]],
    ['with too many fields', [[0, [1, all, 5]]]],
    ['with a negative mask', [[0, [1, Buffer.of(1)]]]],
    ['with ids of the wrong type', [[3, set({ a: all })]]],
    ['with a wildcard beside ids', [apps([0, all], [7, all])]],
    ['with an odd list inside a condition', [[13, [[26], all]]]],
    ['that are too many', Array.from({ length: maxCaveats + 1 }, (): Pair => [26, read])],
    [
      'that are too many inside conditions',
      [
        ifPresent(
          Array.from({ length: maxCaveats }, (): Pair => [26, read]),
          all,
        ),
      ],
    ],
  ])('%s', (_name, pairs) => {
    expect(readCaveats(pairs)).toBeUndefined()
  })

  test('when they are nested too deeply to be unpacked', () => {
    expect(unpack(pack(ofDepth(3)))).toBeDefined()
    expect(unpack(pack(ofDepth(20)))).toBeUndefined()
  })
})

const bits = fc.integer({ min: 0, max: 31 })
const name = fc.constantFrom('', 'a', 'b', every)
const number = fc.constantFrom(0, 1, 2)
const textSet = fc
  .uniqueArray(fc.tuple(name, bits), { selector: ([id]) => id, maxLength: 2 })
  .map((ids) => [new Map(ids)])
const numberSet = fc
  .uniqueArray(fc.tuple(number, bits), { selector: ([id]) => id, maxLength: 2 })
  .map((ids) => [new Map(ids)])
const leaf: fc.Arbitrary<Pair> = fc.oneof(
  fc.tuple(fc.constant(0), fc.tuple(number, bits)),
  fc.tuple(fc.constant(3), numberSet),
  fc.tuple(fc.constantFrom(2, 5, 7, 14, 16, 28, 29), textSet),
  fc.tuple(fc.constant(4), fc.tuple(fc.integer({ min: 0, max: 2 * now }), fc.integer({ min: 0, max: 2 * now }))),
  fc.tuple(fc.constant(6), fc.tuple(fc.array(name, { maxLength: 2 }))),
  fc.tuple(fc.constant(26), bits),
  fc.tuple(fc.constant(27), fc.array(fc.tuple(fc.array(name, { maxLength: 2 }), fc.boolean()), { maxLength: 2 })),
  fc.tuple(fc.constant(30), fc.constantFrom(1, 3, 0xffff_ffff)),
) as fc.Arbitrary<Pair>
const { pair } = fc.letrec<{ pair: Pair }>((tie) => ({
  pair: fc.oneof(
    { maxDepth: 2 },
    leaf,
    fc
      .tuple(fc.array(tie('pair'), { maxLength: 3 }), bits)
      .map(([inner, otherwise]) => ifPresent(inner as Pair[], otherwise)),
  ),
}))
const optional = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined })
const access = fc
  .record({
    action: bits,
    org: optional(fc.oneof(number, fc.constant(every))),
    app: optional(fc.oneof(number, fc.constant(every))),
    machine: optional(name),
    volume: optional(name),
    cluster: optional(name),
    feature: optional(name),
    mutation: optional(name),
    command: optional(fc.array(name, { maxLength: 3 })),
  })
  .map(
    (fields) =>
      Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as unknown as Access,
  )

describe('for all caveats', () => {
  test('another one never widens what is permitted', () => {
    fc.assert(
      fc.property(fc.array(pair, { maxLength: 3 }), pair, access, (before, added, asked) => {
        const [some, more] = [readCaveats(before), readCaveats([...before, added])]
        if (some && more && permits(more, asked, now)) expect(permits(some, asked, now)).toBe(true)
      }),
      { numRuns: 3000 },
    )
  })

  test('an action that is permitted is permitted without any of its bits, too', () => {
    fc.assert(
      fc.property(fc.array(pair, { maxLength: 3 }), access, bits, (given, asked, fewer) => {
        const found = readCaveats(given)
        if (found && permits(found, asked, now))
          expect(permits(found, { ...asked, action: asked.action & fewer }, now)).toBe(true)
      }),
      { numRuns: 3000 },
    )
  })

  test('nothing is permitted at a time that the token is not current', () => {
    fc.assert(
      fc.property(fc.array(pair, { maxLength: 3 }), access, (given, asked) => {
        const found = readCaveats(given)
        if (found && !isCurrent(found, now)) expect(permits(found, asked, now)).toBe(false)
      }),
    )
  })

  test('reading and judging never throw, whatever the bytes', () => {
    const anything: fc.Arbitrary<Packed> = fc.oneof(
      fc.uint8Array({ maxLength: 60 }).map((bytes) => unpack(Buffer.from(bytes)) ?? null),
      fc.integer({ min: 0, max: 40 }),
      fc.constant<Packed>([]),
      fc.constant<Packed>([[], 1]),
    )
    fc.assert(
      fc.property(
        fc.array(fc.tuple(fc.integer({ min: 0, max: 33 }), anything), { maxLength: 5 }),
        access,
        (pairs, asked) => {
          expect(typeof permits(readCaveats(pairs) ?? [], asked, now)).toBe('boolean')
        },
      ),
      { numRuns: 3000 },
    )
  })
})
