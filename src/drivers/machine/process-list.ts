// Lists the processes of a machine with the pids that they have inside.
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { filterProcesses } from '../host/process-list.ts'
import type { ListenSocket, MachineProcessEntry } from './driver.ts'

/** USER_HZ, the unit of times in /proc, which is 100 on all supported architectures. */
const ticksPerSecond = 100
const pageBytes = 4096
/** A program can have megabytes of arguments. */
const maxCommandBytes = 4096
/** The kernel lists TCP sockets that listen before all others, of which a program can have very many. */
const maxSocketBytes = 128 * 1024
/** The open files that are inspected for sockets, of all processes together. */
const maxDescriptors = 20_000
const batchSize = 25

/** Lists the pid namespace of the process `first`, without `first` itself, which belongs to the platform. */
export async function listNamespace(first: number): Promise<MachineProcessEntry[]> {
  const namespace = readLink(`/proc/${first}/ns/pid`)
  if (namespace === undefined) return []
  const found = await filterProcesses(({ pid }) => pid !== first && readLink(`/proc/${pid}/ns/pid`) === namespace)
  const listening = listListening(first)
  const entries: MachineProcessEntry[] = []
  let descriptors = maxDescriptors
  for (const [index, { pid }] of found.entries()) {
    // Does not block the event loop for as long as a machine with many processes would.
    if (index % batchSize === 0) await setImmediate()
    const links = listening.size > 0 ? listFiles(`/proc/${pid}/fd`).slice(0, descriptors) : []
    descriptors -= links.length
    const entry = describe(pid, links, listening)
    if (entry) entries.push(entry)
  }
  return entries
}

function describe(
  pid: number,
  descriptors: string[],
  listening: Map<string, ListenSocket>,
): MachineProcessEntry | undefined {
  const [stat, status, uptime] = [`/proc/${pid}/stat`, `/proc/${pid}/status`, '/proc/uptime'].map(read)
  const inner = /^NSpid:.*\t(\d+)$/m.exec(status ?? '')?.[1]
  if (stat === undefined || inner === undefined || inner === '1') return undefined
  const fields = stat
    .slice(stat.lastIndexOf(')') + 2)
    .split(' ')
    .map(Number)
  const [user, system, started, pages] = [fields[11]!, fields[12]!, fields[19]!, fields[21]!]
  const seconds = Math.max(Number.parseFloat(uptime ?? '0') - started / ticksPerSecond, 1 / ticksPerSecond)
  const used = (user + system) / ticksPerSecond
  return {
    pid: Number(inner),
    stime: Math.round((system / ticksPerSecond) * 1000),
    rtime: Math.round(seconds * 1000),
    command: readStart(`/proc/${pid}/cmdline`, maxCommandBytes).split('\0').join(' ').trim() || nameOf(stat),
    directory: readLink(`/proc/${pid}/cwd`) ?? '',
    cpu: Math.round((used / seconds) * 100),
    rss: pages * pageBytes,
    listen_sockets: socketsOf(pid, descriptors, listening),
  }
}

function nameOf(stat: string): string {
  return stat.slice(stat.indexOf('(') + 1, stat.lastIndexOf(')'))
}

const listenState = '0A'
/** TCP_CLOSE in the kernel's numbering, the state of an unconnected UDP socket. */
const unconnected = '07'
const kinds = { tcp: listenState, tcp6: listenState, udp: unconnected, udp6: unconnected }

/** Maps inode numbers to the sockets that listen in the network namespace of the process. */
export function listListening(pid: number): Map<string, ListenSocket> {
  const sockets = new Map<string, ListenSocket>()
  for (const [proto, state] of Object.entries(kinds)) {
    for (const line of readStart(`/proc/${pid}/net/${proto}`, maxSocketBytes).split('\n').slice(1)) {
      const words = line.trim().split(/\s+/)
      if (words[3] === state && words[9]) sockets.set(words[9], { proto, address: readAddress(words[1]!) })
    }
  }
  return sockets
}

/** Parses hexadecimal digits in groups of four bytes, each in host byte order. */
function readAddress(text: string): string {
  const [digits = '', port = '0'] = text.split(':')
  const bytes = (digits.match(/.{8}/g) ?? []).flatMap((word) => word.match(/../g)!.reverse())
  const number = Number.parseInt(port, 16)
  if (bytes.length === 4) return `${bytes.map((byte) => Number.parseInt(byte, 16)).join('.')}:${number}`
  const groups = Array.from({ length: 8 }, (_, at) => `${bytes[at * 2]}${bytes[at * 2 + 1]}`.replace(/^0{1,3}/, ''))
  return `[${new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1)}]:${number}`
}

function socketsOf(pid: number, descriptors: string[], listening: Map<string, ListenSocket>): ListenSocket[] {
  const links = descriptors.map((name) => readLink(`/proc/${pid}/fd/${name}`) ?? '')
  const inodes = new Set(links.map((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1]))
  return [...inodes].flatMap((inode) => (inode && listening.has(inode) ? [listening.get(inode)!] : []))
}

// Reads return undefined or nothing when the process has exited meanwhile.
function read(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
}

/** Returns the first bytes of a file, none if it cannot be read. The kernel returns a part of a page with each read. */
function readStart(file: string, bytes: number): string {
  try {
    const descriptor = openSync(file, 'r')
    try {
      const buffer = Buffer.alloc(bytes)
      let length = 0
      for (let count = -1; count !== 0 && length < bytes; length += count)
        count = readSync(descriptor, buffer, length, bytes - length, null)
      return buffer.toString('utf8', 0, length)
    } finally {
      closeSync(descriptor)
    }
  } catch {
    return ''
  }
}

function readLink(file: string): string | undefined {
  try {
    return readlinkSync(file)
  } catch {
    return undefined
  }
}

function listFiles(directory: string): string[] {
  try {
    return readdirSync(directory)
  } catch {
    return []
  }
}
