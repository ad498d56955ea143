// Facts about this machine. A thing that is not there is an answer, never an error.
import { randomBytes } from 'node:crypto'
import { accessSync, constants, existsSync, readFileSync, statSync } from 'node:fs'
import { mkdir, rm, statfs, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { userInfo } from 'node:os'
import { dirname } from 'node:path'
import { commandExists, findCommand, run } from './process.ts'

export interface FoundCommand {
  path: string
  /** Undefined when the program does not tell. */
  version: string | undefined
}

const versionArguments = {
  // s6 programs do not know their version, so that Debian's package is asked.
  's6-svscan': undefined,
  pgbouncer: ['--version'],
  bwrap: ['--version'],
  ip: ['-V'],
  nft: ['--version'],
  dnsmasq: ['--version'],
}

export type HostCommand = keyof typeof versionArguments

// Answers come in milliseconds; whoever asks about a host wants to know soon when they do not.
const answerSeconds = 1.5

export async function inspectCommand(name: HostCommand): Promise<FoundCommand | undefined> {
  const path = findCommand(name)
  if (path === undefined) return undefined
  const args = versionArguments[name]
  const text = args ? await outputOf(path, args) : await outputOf('dpkg-query', ['-W', 's6'])
  return { path, version: text === undefined ? undefined : parseVersion(text) }
}

/** The first number with a dot: programs put it at all kinds of places. */
export function parseVersion(text: string): string | undefined {
  return /\d+(?:\.\d+)+/.exec(text)?.[0]
}

async function outputOf(command: string, args: string[]): Promise<string | undefined> {
  const output = await run(command, args, { timeoutSeconds: answerSeconds }).catch(() => undefined)
  return output?.stdout
}

const libraryDirectories = ['/lib', '/lib64', '/usr/lib', '/usr/lib64', '/usr/local/lib']
const libraryTriplets: Record<string, string> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' }

export function findLibrary(file: string): string | undefined {
  const triplet = libraryTriplets[process.arch]
  const places = [...libraryDirectories, ...(triplet ? [`/usr/lib/${triplet}`, `/lib/${triplet}`] : [])]
  return places.map((place) => `${place}/${file}`).find((path) => existsSync(path))
}

export type UserNamespaces = { usable: true; by: string } | { usable: false; why: string }

/** Kernel settings, security modules and containers all have a say, so that only trying tells. */
export async function inspectUserNamespaces(): Promise<UserNamespaces> {
  const attempt = commandExists('bwrap')
    ? ['bwrap', '--unshare-all', '--ro-bind', '/', '/', 'true']
    : ['unshare', '-Ur', 'true']
  const [command = '', ...args] = attempt
  try {
    await run(command, args, { timeoutSeconds: answerSeconds })
    return { usable: true, by: command }
  } catch (error) {
    return { usable: false, why: (error as Error).message }
  }
}

/** `writable` are the controllers whose groups this process may create. */
export type ControlGroups = { kind: 'v2' | 'v1' | 'none'; controllers: string[]; writable: string[] }

export function inspectControlGroups(proc = '/proc/self'): ControlGroups {
  const mounts = readLines(`${proc}/mounts`).map((line) => line.split(' '))
  const own = readOwnGroups(readLines(`${proc}/cgroup`))
  const v1 = inspectV1(mounts, own)
  // In the hybrid kind a second tree exists, without the controllers that matter.
  if (v1.controllers.length > 0) return v1
  const unified = mounts.find(([, , type]) => type === 'cgroup2')?.[1]
  if (unified === undefined) return { kind: 'none', controllers: [], writable: [] }
  const directory = groupDirectory(unified, own.get(''))
  const controllers = (readLines(`${directory}/cgroup.controllers`)[0] ?? '').split(' ').filter(Boolean)
  const isOurs = canWrite(directory) && canWrite(`${directory}/cgroup.procs`)
  return { kind: 'v2', controllers, writable: isOurs ? controllers : [] }
}

/** Whether there is swap, and a limit of it can be set for each group. Where swap is always counted, it can. */
export function inspectSwap(proc = '/proc'): { present: boolean; limited: boolean } {
  const groups = inspectControlGroups(`${proc}/self`)
  const memory = readLines(`${proc}/self/mounts`)
    .map((line) => line.split(' '))
    .find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes('memory'))?.[1]
  const isCounted = groups.kind === 'v2' || existsSync(`${memory}/memory.memsw.limit_in_bytes`)
  return { present: readLines(`${proc}/swaps`).length > 1, limited: groups.writable.includes('memory') && isCounted }
}

const v1Controllers = ['cpu', 'memory', 'pids', 'cpuset', 'blkio', 'freezer', 'devices']

function inspectV1(mounts: string[][], own: Map<string, string>): ControlGroups {
  const found = v1Controllers.flatMap((controller) => {
    const mount = mounts.find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes(controller))
    return mount ? [{ controller, directory: groupDirectory(mount[1]!, own.get(controller)) }] : []
  })
  const writable = found.filter(({ directory }) => canWrite(directory))
  return { kind: 'v1', controllers: found.map(name), writable: writable.map(name) }
}

function name({ controller }: { controller: string }): string {
  return controller
}

/** Lines such as `4:cpu,cpuacct:/path`; that of v2 names no controller. */
function readOwnGroups(lines: string[]): Map<string, string> {
  const groups = lines.map((line) => /^\d+:([^:]*):(.*)$/.exec(line)).filter((match) => match !== null)
  return new Map(groups.flatMap(([, names = '', path = '']) => names.split(',').map((one) => [one, path] as const)))
}

// In a container the path may be that of the host, which is not mounted here.
function groupDirectory(mount: string, path = '/'): string {
  const directory = `${mount}${path}`
  return existsSync(directory) ? directory : mount
}

/** True, false, or undefined when nothing may be written there. Leaves nothing behind. */
export async function supportsReflink(directory: string): Promise<boolean | undefined> {
  const probe = `${directory}/.berth-probe~${randomBytes(6).toString('hex')}`
  try {
    await mkdir(probe, { mode: 0o700 })
  } catch {
    return undefined
  }
  try {
    await writeFile(`${probe}/original`, 'x'.repeat(4096))
    await run('cp', ['--reflink=always', `${probe}/original`, `${probe}/copy`], { timeoutSeconds: answerSeconds })
    return true
  } catch {
    return false
  } finally {
    await rm(probe, { recursive: true, force: true })
  }
}

export interface Space {
  /** What an ordinary user may still write. */
  freeBytes: number
  totalBytes: number
}

export async function measureDisk(path: string): Promise<Space | undefined> {
  const found = await statfs(path).catch(() => undefined)
  return found && { freeBytes: found.bavail * found.bsize, totalBytes: found.blocks * found.bsize }
}

/** Undefined when one of the paths does not exist. */
export function areOnOneDevice(a: string, b: string): boolean | undefined {
  const [first, second] = [a, b].map((path) => statSync(path, { throwIfNoEntry: false }))
  return first && second && first.dev === second.dev
}

/** The path itself, or the nearest directory above it that exists. */
export function nearestExisting(path: string): string {
  let place = path
  while (!exists(place) && place !== '/') place = dirname(place)
  return place
}

// Unlike existsSync it tells "is not there" from "may not be looked at".
function exists(path: string): boolean {
  try {
    return statSync(path, { throwIfNoEntry: false }) !== undefined
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ENOTDIR'
  }
}

/** Undefined when the machine knows the user by his number only. */
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

/** In a container with a limit, the limit and what is left of it. */
export function measureMemory(): Memory {
  const lines = readLines('/proc/meminfo')
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

/** Listens there for a moment. */
export function tryBind(host: string, port: number): Promise<Binding> {
  return new Promise((resolve) => {
    const server = createServer()
    server.once('error', (error: NodeJS.ErrnoException) => resolve({ free: false, code: error.code ?? error.message }))
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve({ free: true })))
  })
}

// Archives carry the time of another zone at worst.
const clockSlackMillis = 24 * 3600 * 1000

/** A clock that shows a time before the installed program was written is wrong for certain. */
export function isClockPlausible(nowMillis = Date.now()): boolean {
  const writtenMillis = statSync(new URL(import.meta.url)).mtimeMs
  return nowMillis > writtenMillis - clockSlackMillis
}

/** How many files a process started from here may hold open; Infinity without a limit. */
export function readOpenFileLimit(limits = '/proc/self/limits'): number | undefined {
  const hard = readLines(limits)
    .find((line) => line.startsWith('Max open files'))
    ?.split(/\s+/)[4]
  if (hard === undefined) return undefined
  return hard === 'unlimited' ? Number.POSITIVE_INFINITY : Number(hard)
}

export function canWrite(path: string): boolean {
  try {
    accessSync(path, constants.W_OK)
    return true
  } catch {
    return false
  }
}

function readLines(file: string): string[] {
  try {
    return readFileSync(file, 'utf8').trimEnd().split('\n')
  } catch {
    return []
  }
}
