// What listens inside a box, as the kernel says: the table of its network, and the open files of its processes.
import { type FileHandle, open, readdir, readFile, readlink } from 'node:fs/promises'
import { isIPv4 } from 'node:net'
import { findProcess } from '../host/process-list.ts'
import type { BoxDriver } from './driver.ts'

export interface ListeningPort {
  port: number
  /** What it is bound to. */
  address: string
  /** As seen inside; 0 when it cannot be told. */
  pid: number
  /** When that process began, in ticks since boot; 0 when it cannot be told. */
  since: number
  /** Of the sockets, by which one listener is told from the next on the same port. */
  sockets: number[]
}

export type Holder = Pick<ListeningPort, 'pid' | 'since'>

export interface ListenerRow {
  port: number
  address: string
  socket: number
}

/** The kernel writes listeners first, so that any number of connections after them does not matter. */
const maxTableBytes = 1024 * 1024
const maxOpenFiles = 50_000
const listening = '0A'

/** Every port once, whichever and however many sockets listen on it. */
export async function readPorts(
  boxes: BoxDriver,
  id: string,
  known: ReadonlyMap<number, Holder>,
): Promise<ListeningPort[]> {
  const box = await boxes.inspectBox(id)
  if (box.is !== 'up') return []
  const tables = await Promise.all(['tcp', 'tcp6'].map((name) => readStart(`/proc/${box.pid}/net/${name}`)))
  const rows = tables.flatMap(parseListeners)
  if (rows.length === 0) return []
  const isShared = (await readlinkOrEmpty(`/proc/${box.pid}/ns/net`)) === (await readlinkOrEmpty('/proc/self/ns/net'))
  const holders = new Map(known)
  if (rows.some((row) => !holders.has(row.socket))) {
    for (const [socket, holder] of await findHolders(box.pid, isShared)) holders.set(socket, holder)
  }
  // In a network of all, only what the processes of the box hold is the box's.
  const own = isShared ? rows.filter((row) => holders.has(row.socket)) : rows
  return [...Map.groupBy(own, (row) => row.port)].map(([port, same]) => ({
    port,
    address: (same.find((row) => isIPv4(row.address)) ?? same[0]!).address,
    ...holderOf(same.map((row) => holders.get(row.socket)).find((holder) => holder?.pid)),
    sockets: same.map((row) => row.socket),
  }))
}

function holderOf({ pid, since }: Holder = { pid: 0, since: 0 }): Holder {
  return { pid, since }
}

export function parseListeners(table: string): ListenerRow[] {
  return table
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === listening && fields.length > 9)
    .map((fields) => {
      const [address = '', port = ''] = fields[1]!.split(':')
      return { port: Number.parseInt(port, 16), address: renderAddress(address), socket: Number(fields[9]) }
    })
}

/** Words of 32 bits, each in the order of the machine, whose bytes come last to first. */
function renderAddress(hex: string): string {
  const words = hex.match(/.{8}/g) ?? []
  const bytes = words.flatMap((word) => (word.match(/../g) ?? []).reverse().map((byte) => Number.parseInt(byte, 16)))
  if (bytes.length === 4) return bytes.join('.')
  if (bytes.slice(0, 10).every((byte) => byte === 0) && bytes[10] === 255) return bytes.slice(12).join('.')
  const groups = Array.from({ length: 8 }, (_, at) => ((bytes[at * 2]! << 8) | bytes[at * 2 + 1]!).toString(16))
  return new URL(`http://[${groups.join(':')}]/`).hostname.slice(1, -1)
}

/** Which process inside holds which socket: the first of them, when several do. */
async function findHolders(first: number, isShared: boolean): Promise<Map<number, Holder>> {
  const holders = new Map<number, Holder>()
  let left = maxOpenFiles
  for (const pid of isShared ? await descendantsOf(first) : await membersOf(first)) {
    const files = await readdir(`/proc/${pid}/fd`).catch(() => [])
    let holder: Holder | undefined
    for (const file of files) {
      if (left-- <= 0) return holders
      const socket = /^socket:\[(\d+)\]$/.exec(await readlinkOrEmpty(`/proc/${pid}/fd/${file}`))?.[1]
      if (socket === undefined || holders.has(Number(socket))) continue
      holder ??= { pid: await innerPid(pid), since: Number(findProcess(pid)?.startTime ?? 0) }
      holders.set(Number(socket), holder)
    }
  }
  return holders
}

async function membersOf(first: number): Promise<number[]> {
  const namespace = await readlinkOrEmpty(`/proc/${first}/ns/pid`)
  const members: number[] = []
  for (const pid of await listProcesses()) {
    if (namespace !== '' && (await readlinkOrEmpty(`/proc/${pid}/ns/pid`)) === namespace) members.push(pid)
  }
  return members
}

async function descendantsOf(first: number): Promise<number[]> {
  const found = new Set([first])
  const parents = new Map<number, number>()
  for (const pid of await listProcesses()) {
    const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '')
    parents.set(pid, Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]))
  }
  for (let size = 0; size !== found.size; ) {
    size = found.size
    for (const [pid, parent] of parents) if (found.has(parent)) found.add(pid)
  }
  return [...found]
}

async function listProcesses(): Promise<number[]> {
  const names = await readdir('/proc')
  return names
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .sort((a, b) => a - b)
}

async function innerPid(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  return Number(/^NSpid:.*?(\d+)$/m.exec(status)?.[1] ?? 0)
}

/** Processes end while they are looked at. */
function readlinkOrEmpty(path: string): Promise<string> {
  return readlink(path).catch(() => '')
}

async function readStart(path: string): Promise<string> {
  let file: FileHandle
  try {
    file = await open(path)
  } catch {
    return ''
  }
  try {
    const buffer = Buffer.alloc(65_536)
    const pieces: string[] = []
    for (let size = 0; size < maxTableBytes; ) {
      const { bytesRead } = await file.read(buffer)
      if (bytesRead === 0) break
      size += bytesRead
      pieces.push(buffer.toString('latin1', 0, bytesRead))
    }
    return pieces.join('')
  } catch {
    return ''
  } finally {
    await file.close()
  }
}
