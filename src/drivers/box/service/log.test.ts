import {
  appendFileSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { LogReader } from './driver.ts'
import { openServiceLog } from './log.ts'

let directory: string
let clock: number
const readers: LogReader[] = []

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'berth-log-'))
  for (const stream of ['stdout', 'stderr']) mkdirSync(`${directory}/${stream}`)
  clock = 0
})

afterEach(() => {
  for (const reader of readers.splice(0)) reader.close()
  rmSync(directory, { recursive: true, force: true })
})

function print(stream: 'stdout' | 'stderr', ...lines: string[]): void {
  for (const line of lines) {
    const time = new Date(clock++).toISOString().replace('T', ' ').replace('Z', '000000')
    appendFileSync(`${directory}/${stream}/current`, `${time}  ${line}\n`)
  }
}

/** Rotates like s6-log, which keeps three full files. */
function rotate(stream: 'stdout' | 'stderr', label: number, removed?: number): void {
  const name = (number: number) => `${directory}/${stream}/@${String(number).padStart(24, '0')}.s`
  renameSync(`${directory}/${stream}/current`, name(label))
  writeFileSync(`${directory}/${stream}/current`, '')
  if (removed !== undefined) unlinkSync(name(removed))
}

function closedAtEnd(reader: LogReader): LogReader {
  readers.push(reader)
  return reader
}

async function texts(reader: LogReader): Promise<string[]> {
  return (await reader.read(1e9)).map((item) => (item.is === 'line' ? item.text : item.is))
}

test('merges both streams by time, across several files', async () => {
  print('stdout', 'a')
  print('stderr', 'b')
  rotate('stdout', 1)
  print('stdout', 'c')
  rotate('stdout', 2)
  print('stderr', 'd')
  print('stdout', 'e')
  const reader = closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromBefore())
  expect(await texts(reader)).toEqual(['a', 'b', 'c', 'd', 'e'])
  expect(await texts(reader)).toEqual([])
})

test('follows the log across rotations without losing lines', async () => {
  const reader = closedAtEnd(openServiceLog(dirname(directory), basename(directory)).fromNow())
  print('stdout', '1')
  expect(await texts(reader)).toEqual(['1'])
  print('stdout', '2')
  rotate('stdout', 1)
  print('stdout', '3')
  rotate('stdout', 2)
  print('stdout', '4')
  expect(await texts(reader)).toEqual(['2', '3', '4'])
  // The file it reads from is deleted while it still has unread lines.
  print('stdout', '5')
  for (const label of [3, 4, 5, 6]) rotate('stdout', label, label > 3 ? label - 3 : undefined)
  print('stdout', '6')
  expect(await texts(reader)).toEqual(['5', 'gap', '6'])
})

test('does not return an incomplete line', async () => {
  const reader = closedAtEnd(openServiceLog(dirname(directory), basename(directory)).fromNow())
  appendFileSync(`${directory}/stdout/current`, '1970-01-01 00:00:00.000000000  hal')
  expect(await texts(reader)).toEqual([])
  appendFileSync(`${directory}/stdout/current`, 'f\n')
  expect(await texts(reader)).toEqual(['half'])
})

test('drops one empty line before an end mark', async () => {
  print('stdout', 'last', '', '', '\x1eexited with code 3')
  print('stderr', 'no end', '\x1eexited with code 3')
  const reader = closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromBefore())
  expect(await texts(reader)).toEqual(['last', '', 'end', 'no end', 'end'])
})

test.each([
  [1, ['e']],
  [2, ['d', 'e']],
  [4, ['b', 'c', 'd', 'e']],
  [99, ['a', 'b', 'c', 'd', 'e']],
])('starts %d lines before the end', async (lines, expected) => {
  print('stdout', 'a')
  rotate('stdout', 1)
  print('stderr', 'b')
  print('stdout', 'c')
  print('stderr', 'd', '', '\x1eexited with code 0')
  print('stdout', 'e', '', '\x1eexited with code 0')
  const reader = closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromBefore(lines))
  expect((await texts(reader)).filter((text) => text !== 'end')).toEqual(expected)
})

test('counts lines across many chunks and files', async () => {
  for (let at = 0; at < 3; at++) {
    print('stdout', ...Array.from({ length: 3000 }, (_, line) => `${at} ${line} ${'x'.repeat(line % 90)}`))
    if (at < 2) rotate('stdout', at)
  }
  const reader = closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromBefore(3500))
  const found = await texts(reader)
  expect(found).toHaveLength(3500)
  expect(found[0]!.startsWith('1 2500 ')).toBe(true)
})

test('returns lines without a timestamp unchanged, and follows no links', async () => {
  writeFileSync(`${directory}/stdout/current`, Buffer.from('odd \xff bytes\n', 'latin1'))
  symlinkSync('/etc/passwd', `${directory}/stderr/current`)
  const reader = closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromBefore())
  expect(await texts(reader)).toEqual(['odd � bytes'])
  const nothing = closedAtEnd(await openServiceLog(directory, 'absent').fromBefore(5))
  expect(await texts(nothing)).toEqual([])
})

test('finds the lines after a time in any file, without reading all earlier ones', async () => {
  const long = 'x'.repeat(100)
  const lines = (from: number, to: number) => Array.from({ length: to - from }, (_, at) => `${from + at} ${long}`)
  print('stdout', ...lines(0, 1500))
  rotate('stdout', 1)
  print('stdout', ...lines(1500, 3000))
  print('stderr', 'last')
  for (const time of [0, 1, 700, 1499, 1500, 2200, 2999]) {
    const items = await closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromTime(time)).read(
      1e9,
    )
    const times = items.map((item) => (item.is === 'line' ? item.timeMs : -1))
    expect(times.filter((at) => at > time)).toEqual(Array.from({ length: 3000 - time }, (_, at) => time + 1 + at))
    expect(times.filter((at) => at <= time).length).toBeLessThan(1000)
  }
  expect(
    await texts(closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromTime(-5))),
  ).toHaveLength(3001)
  expect(
    (await texts(closedAtEnd(await openServiceLog(dirname(directory), basename(directory)).fromTime(1e9)))).length,
  ).toBeLessThan(1000)
})
