// The end of the log of a removed machine, so that the output of a machine that destroys itself can still be read.
import {
  closeSync,
  constants,
  existsSync,
  fstatSync,
  linkSync,
  openSync,
  readdirSync,
  readSync,
  statSync,
  writeSync,
} from 'node:fs'
import { rm } from 'node:fs/promises'
import { waitUntil } from '../../model/poll.ts'
import { ensureDirectory } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { keptLogDirectory, type MachinePaths } from './paths.ts'
import { platformMark } from './script.ts'

/** As long as the API shows destroyed machines. */
const maxAgeMs = 3_600_000
const maxTotalBytes = 256 * 1024 ** 2
/** A shorter current file is kept together with the one before. */
const shortBytes = 64 * 1024

/** The loggers read a moment later than programs write, more so on a busy host. */
const loggerSeconds = 1

const streams = ['stdout', 'stderr'] as const

/** Writes to the pipe of standard error, and never waits for its reader. Returns whether there is one. */
export function writePlatformLine(paths: MachinePaths, text: string): boolean {
  try {
    const pipe = openSync(paths.stderr, constants.O_WRONLY | constants.O_NONBLOCK)
    try {
      writeSync(pipe, `${platformMark}${text}\n`)
    } finally {
      closeSync(pipe)
    }
    return true
  } catch {
    return false // the pipe does not exist, has no reader or is full
  }
}

/**
 * Keeps the newest log files of a machine whose program has ended. They are linked and not moved, because its loggers may
 * still be writing. May be interrupted and repeated.
 */
export async function keepLog(paths: MachinePaths): Promise<void> {
  if (!existsSync(paths.log)) return
  await waitForLoggers(paths)
  for (const stream of streams) {
    const [from, to] = [`${paths.log}/${stream}`, `${paths.keptLog}/${stream}`]
    ensureDirectory(to, { mode: 0o700 })
    for (const name of newestFiles(from)) linkIfAbsent(`${from}/${name}`, `${to}/${name}`)
  }
}

/** The directory of the log of a machine, which may have been removed or not started yet. */
export function findLog(paths: MachinePaths): string {
  return !existsSync(paths.log) && existsSync(paths.keptLog) ? paths.keptLog : paths.log
}

const lastWord = 'destroyed'

/** The pipes of both streams are empty when the line that ends each of them is in the log. */
async function waitForLoggers(paths: MachinePaths): Promise<void> {
  const hasLogger = writePlatformLine(paths, lastWord)
  const endsWith = (stream: (typeof streams)[number], text: string) =>
    lastLine(`${paths.log}/${stream}/current`).includes(`${platformMark}${text}`)
  // The finish script reports each exit on standard output.
  await waitUntil(() => endsWith('stdout', '') && (!hasLogger || endsWith('stderr', lastWord)), loggerSeconds)
}

const tailBytes = 4096

function lastLine(file: string): string {
  try {
    const descriptor = openSync(file, 'r')
    try {
      const tail = Buffer.alloc(tailBytes)
      const length = readSync(descriptor, tail, 0, tailBytes, Math.max(0, fstatSync(descriptor).size - tailBytes))
      return tail.toString('utf8', 0, length).trimEnd().split('\n').at(-1)!
    } finally {
      closeSync(descriptor)
    }
  } catch {
    return ''
  }
}

function newestFiles(directory: string): string[] {
  const full = listNames(directory)
    .filter((name) => name.startsWith('@'))
    .sort()
  const isShort = (sizeOf(`${directory}/current`) ?? 0) < shortBytes
  return ['current', ...(isShort ? full.slice(-1) : [])]
}

function linkIfAbsent(from: string, to: string): void {
  try {
    linkSync(from, to)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    // The logger may rename a file at any moment.
    if (code !== 'EEXIST' && code !== 'ENOENT') throw error
  }
}

interface KeptLog {
  directory: string
  atMs: number
  bytes: number
}

/** Deletes kept logs that are too old, and the oldest while all together are too large. */
export async function trimKeptLogs(home: Pick<Home, 'path'>): Promise<void> {
  const root = keptLogDirectory(home)
  const newestFirst = listNames(root)
    .map((name) => measureLog(`${root}/${name}`))
    .sort((a, b) => b.atMs - a.atMs)
  let totalBytes = 0
  for (const { directory, atMs, bytes } of newestFirst) {
    totalBytes += bytes
    const isKept = Date.now() - atMs < maxAgeMs && totalBytes <= maxTotalBytes
    if (!isKept) await rm(directory, { recursive: true, force: true })
  }
}

function measureLog(directory: string): KeptLog {
  const files = streams.flatMap((stream) => listNames(`${directory}/${stream}`).map((name) => `${stream}/${name}`))
  const bytes = files.reduce((sum, name) => sum + (sizeOf(`${directory}/${name}`) ?? 0), 0)
  return { directory, atMs: statSync(directory, { throwIfNoEntry: false })?.mtimeMs ?? 0, bytes }
}

function listNames(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : []
}

function sizeOf(file: string): number | undefined {
  return statSync(file, { throwIfNoEntry: false })?.size
}
