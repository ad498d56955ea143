// Facts about this host for the doctor and the start. Anything that is missing is reported as a result, not as an
// error.
import { existsSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { userInfo } from 'node:os'
import { readLinesIfPossible } from './file.ts'
import { commandExists, findCommand, run } from './process.ts'

export interface InstalledCommand {
  path: string
  /** Undefined if the program does not print it. */
  version: string | undefined
}

const versionArguments = {
  // s6 programs do not print a version, so dpkg is asked.
  's6-svscan': undefined,
  pgbouncer: ['--version'],
  bwrap: ['--version'],
  ip: ['-V'],
  nft: ['--version'],
  dnsmasq: ['--version'],
  openssl: ['version'],
  perl: ['--version'],
  unshare: ['--version'],
  git: ['--version'],
  btrfs: ['--version'],
  'mkfs.ext4': ['-V'],
  'mkfs.xfs': ['-V'],
}

export type HostCommand = keyof typeof versionArguments

/** These programs take milliseconds. */
const commandTimeoutSeconds = 1.5

export async function inspectCommand(name: HostCommand): Promise<InstalledCommand | undefined> {
  const path = findCommand(name)
  if (path === undefined) return undefined
  const args = versionArguments[name]
  const text = args ? await outputOf(path, args) : await outputOf('dpkg-query', ['-W', 's6'])
  return { path, version: text === undefined ? undefined : parseVersion(text) }
}

/** Finds the first dotted number: every program prints its version in another position. */
export function parseVersion(text: string): string | undefined {
  return /\d+(?:\.\d+)+/.exec(text)?.[0]
}

async function outputOf(command: string, args: string[]): Promise<string | undefined> {
  const output = await run(command, args, { timeoutSeconds: commandTimeoutSeconds }).catch(() => undefined)
  // Some programs print it to standard error.
  return output && output.stdout + output.stderr
}

const libraryDirectories = ['/lib', '/lib64', '/usr/lib', '/usr/lib64', '/usr/local/lib']
const libraryTriplets: Record<string, string> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' }

export function findLibrary(file: string): string | undefined {
  const triplet = libraryTriplets[process.arch]
  const directories = [...libraryDirectories, ...(triplet ? [`/usr/lib/${triplet}`, `/lib/${triplet}`] : [])]
  return directories.map((directory) => `${directory}/${file}`).find((path) => existsSync(path))
}

export type UserNamespaces = { usable: true; by: string } | { usable: false; why: string }

/** Creates a user namespace: kernel settings, security modules and containers can all forbid it. */
export async function inspectUserNamespaces(): Promise<UserNamespaces> {
  const attempt = commandExists('bwrap')
    ? ['bwrap', '--unshare-all', '--ro-bind', '/', '/', 'true']
    : ['unshare', '-Ur', 'true']
  const [command = '', ...args] = attempt
  try {
    await run(command, args, { timeoutSeconds: commandTimeoutSeconds })
    return { usable: true, by: command }
  } catch (error) {
    return { usable: false, why: (error as Error).message }
  }
}

/** Returns undefined if the user has no entry in the user database. */
export function findUserName(): string | undefined {
  try {
    return userInfo().username
  } catch {
    return undefined
  }
}

export interface Memory {
  totalBytes: number
  availableBytes: number
}

/** Measures the memory of the host or, in a container with a limit, of the container. */
export function measureMemory(): Memory {
  const lines = readLinesIfPossible('/proc/meminfo')
  const host = (key: string) => {
    const kilobytes = lines.find((line) => line.startsWith(`${key}:`))?.match(/\d+/)?.[0]
    return Number(kilobytes ?? 0) * 1024
  }
  const limit = process.constrainedMemory() || Number.POSITIVE_INFINITY
  return {
    totalBytes: Math.min(host('MemTotal'), limit),
    availableBytes: Math.min(host('MemAvailable'), process.availableMemory()),
  }
}

export type Binding = { free: true } | { free: false; code: string }

/** Listens on the address for a moment. */
export function tryBind(host: string, port: number): Promise<Binding> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', (error: NodeJS.ErrnoException) => resolve({ free: false, code: error.code ?? error.message }))
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve({ free: true })))
  })
}

/** Archives may store file times in another time zone. */
const clockToleranceMs = 24 * 3600 * 1000

/** Whether the clock is not before the time at which this program was installed. */
export function isClockPlausible(nowMs = Date.now()): boolean {
  const installedMs = statSync(new URL(import.meta.url)).mtimeMs
  return nowMs > installedMs - clockToleranceMs
}

/** Reads how many files a child process may open; Infinity without a limit. */
export function readOpenFileLimit(limits = '/proc/self/limits'): number | undefined {
  const hard = readLinesIfPossible(limits)
    .find((line) => line.startsWith('Max open files'))
    ?.split(/\s+/)[4]
  if (hard === undefined) return undefined
  return hard === 'unlimited' ? Number.POSITIVE_INFINITY : Number(hard)
}
