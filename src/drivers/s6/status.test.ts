import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { decodeStatus, parseStatusFile, parseStatusLine } from './status.ts'

interface Fields {
  since?: [seconds: bigint, nanoseconds: number]
  pid?: bigint
  /** Written by s6 2.13 only. */
  processGroup?: bigint
  waitStatus?: number
  flags?: number
}

/** The TAI64 label of 2026-11-15T05:40:17Z. */
const label = 0x400000006af945e6n
const sinceMicros = BigInt(Date.UTC(2026, 10, 15, 5, 40, 17)) * 1000n

const [paused, finishing, wanted, ready] = [1, 2, 4, 8]

/** Packs a status file as `s6_svstatus_pack.c` does. */
function pack({ since = [label, 0], pid = 0n, processGroup, waitStatus = 0, flags = 0 }: Fields): Buffer {
  const stamp = [...uint(since[0], 8), ...uint(BigInt(since[1]), 4)]
  return Buffer.from([
    ...stamp,
    ...stamp,
    ...uint(pid, 8),
    ...(processGroup === undefined ? [] : uint(processGroup, 8)),
    ...uint(BigInt(waitStatus), 2),
    flags,
  ])
}

/** The bytes of a big-endian unsigned integer. */
function uint(value: bigint, bytes: number): number[] {
  return Array.from({ length: bytes }, (_, index) => Number((value >> BigInt(8 * (bytes - 1 - index))) & 0xffn))
}

test('reads a file that s6-supervise 2.11.3 wrote', () => {
  // s6-svstat showed this process as "up (pid 8367), ready".
  const bytes = Buffer.from('400000006af945e6385015de400000006af945e6385a667000000000000020af00000c', 'hex')
  expect(decodeStatus(bytes)).toEqual({
    since: sinceMicros + 944_772n,
    pid: 8367,
    waitStatus: 0,
    paused: false,
    finishing: false,
    wanted: true,
    ready: true,
  })
})

describe.each([
  ['35 bytes (s6 2.12 and older, 2.14 and newer)', 35, {}],
  ['43 bytes (s6 2.13)', 43, { processGroup: 0x0102030405060708n }],
])('a file of %s', (_, size, layout) => {
  test('has this size', () => {
    expect(pack(layout).length).toBe(size)
  })

  test('holds the time, the pid and the wait status', () => {
    const bytes = pack({ ...layout, since: [label, 123_456_789], pid: 0x0304n, waitStatus: 0x0700 })
    expect(decodeStatus(bytes)).toMatchObject({ since: sinceMicros + 123_456n, pid: 0x0304, waitStatus: 0x0700 })
  })

  test.each([
    [0, {}],
    [paused, { paused: true }],
    [finishing, { finishing: true }],
    [wanted, { wanted: true }],
    [ready, { ready: true }],
  ])('holds the flags %i', (flags, set) => {
    const none = { paused: false, finishing: false, wanted: false, ready: false }
    expect(decodeStatus(pack({ ...layout, flags }))).toMatchObject({ ...none, ...set })
  })

  test.each([
    ['a running process', { pid: 7n, flags: wanted | ready }, { is: 'up', pid: 7, wanted: true, ready: true }],
    ['an exit code', { waitStatus: 0x0300, flags: wanted }, { is: 'down', wanted: true, exitCode: 3 }],
    ['a signal', { waitStatus: 9 }, { is: 'down', wanted: false, signal: 'SIGKILL' }],
    ['a signal with a core dump', { waitStatus: 0x8b }, { is: 'down', wanted: false, signal: 'SIGSEGV' }],
    ['a real-time signal', { waitStatus: 40 }, { is: 'down', wanted: false, signal: 'signal 40' }],
    [
      'a running finish script',
      { pid: 8n, waitStatus: 0x0100, flags: finishing },
      { is: 'down', wanted: false, finishing: true, exitCode: 1 },
    ],
  ])('is summarized: %s', (_case, fields, summary) => {
    expect(parseStatusFile(pack({ ...layout, ...fields }))).toEqual({ ...summary, since: sinceMicros })
  })

  test('round-trips any values that s6 can write', () => {
    const fields = fc.record({
      seconds: fc.bigInt(0n, 10n ** 10n),
      nanoseconds: fc.nat(999_999_999),
      pid: fc.bigInt(0n, 4_194_304n),
      waitStatus: fc.nat(0xffff),
      flags: fc.nat(15),
    })
    fc.assert(
      fc.property(fields, ({ seconds, nanoseconds, pid, waitStatus, flags }) => {
        const since: [bigint, number] = [label + seconds, nanoseconds]
        expect(decodeStatus(pack({ ...layout, since, pid, waitStatus, flags }))).toEqual({
          since: sinceMicros + seconds * 1_000_000n + BigInt(Math.trunc(nanoseconds / 1000)),
          pid: Number(pid),
          waitStatus,
          paused: (flags & paused) !== 0,
          finishing: (flags & finishing) !== 0,
          wanted: (flags & wanted) !== 0,
          ready: (flags & ready) !== 0,
        })
      }),
    )
  })

  test('is rejected when truncated or followed by other bytes', () => {
    const bytes = pack(layout)
    for (let length = 0; length < size; length++) {
      // The first 35 bytes of the longer layout are a file of the shorter one.
      if (length !== 35) expect(decodeStatus(bytes.subarray(0, length))).toBeUndefined()
    }
    expect(decodeStatus(Buffer.concat([bytes, Buffer.alloc(1)]))).toBeUndefined()
  })

  test('is rejected with a pid or a time that the kernel cannot have', () => {
    expect(decodeStatus(pack({ ...layout, pid: 4_194_305n }))).toBeUndefined()
    expect(decodeStatus(pack({ ...layout, pid: 0xffff_ffff_ffff_ffffn }))).toBeUndefined()
    expect(decodeStatus(pack({ ...layout, since: [0n, 0] }))).toBeUndefined()
    expect(decodeStatus(pack({ ...layout, since: [2n ** 64n - 1n, 0] }))).toBeUndefined()
  })

  test('never throws on garbage, and what it accepts is a valid date', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: size, maxLength: size }), (bytes) => {
        const since = decodeStatus(Buffer.from(bytes))?.since ?? 0n
        expect(Number.isNaN(new Date(Number(since / 1000n)).getTime())).toBe(false)
      }),
    )
  })
})

test('rejects files of any other size', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (bytes) => {
      fc.pre(bytes.length !== 35 && bytes.length !== 43)
      expect(decodeStatus(Buffer.from(bytes))).toBeUndefined()
      expect(parseStatusFile(Buffer.from(bytes))).toBeUndefined()
    }),
  )
})

test.each([
  ['true true 7 true -1 NA', { is: 'up', pid: 7, wanted: true, ready: true }],
  ['false true -1 false 3 NA', { is: 'down', wanted: true, exitCode: 3 }],
  ['false false -1 false -1 SIGKILL', { is: 'down', wanted: false, signal: 'SIGKILL' }],
])('reads the line of s6-svstat "%s"', (line, summary) => {
  expect(parseStatusLine(`${line} @400000006af945e600000000\n`)).toEqual({ ...summary, since: sinceMicros })
})
