// Listening TCP ports of a box, from the socket tables of its network namespace and the open files of its processes.
import { type FileHandle, open, readdir, readFile, readlink } from 'node:fs/promises'
import { isIPv4 } from 'node:net'
import { findProcess } from '../host/process-list.ts'
import type { ListeningPort, SocketHolder } from './driver.ts'

export interface ListenerRow {
  port: number
  address: string
  socket: number
}

/** The kernel lists listening sockets before connections, so a cut-off table still has all listeners. */
const maxTableBytes = 1024 * 1024
const maxOpenFiles = 50_000
const listenState = '0A'

export async function readPorts(first: number, known: ReadonlyMap<number, SocketHolder>): Promise<ListeningPort[]> {
  const tables = await Promise.all(['tcp', 'tcp6'].map((name) => readStart(`/proc/${first}/net/${name}`)))
  const rows = tables.flatMap(parseListeners)
  if (rows.length === 0) return []
  const isShared = (await readlinkOrEmpty(`/proc/${first}/ns/net`)) === (await readlinkOrEmpty('/proc/self/ns/net'))
  const holders = new Map(known)
  if (rows.some((row) => !holders.has(row.socket))) {
    for (const [socket, holder] of await findHolders(first, isShared)) holders.set(socket, holder)
  }
  // In the network namespace of the host, only sockets held by processes of the box belong to the box.
  const own = isShared ? rows.filter((row) => holders.has(row.socket)) : rows
  return [...Map.groupBy(own, (row) => row.port)].map(([port, same]) => ({
    port,
    address: (same.find((row) => isIPv4(row.address)) ?? same[0]!).address,
    ...holderOf(same.map((row) => holders.get(row.socket)).find((holder) => holder?.pid)),
    sockets: same.map((row) => row.socket),
  }))
}

function holderOf({ pid, since }: SocketHolder = { pid: 0, since: 0 }): SocketHolder {
  return { pid, since }
}

export function parseListeners(table: string): ListenerRow[] {
  return table
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === listenState && fields.length > 9)
    .map((fields) => {
      const [address = '', port = ''] = fields[1]!.split(':')
      return { port: Number.parseInt(port, 16), address: renderAddress(address), socket: Number(fields[9]) }
    })
}

/** The kernel prints addresses as 32-bit words in host byte order, which is little-endian here. */
function renderAddress(hex: string): string {
  const words = hex.match(/.{8}/g) ?? []
  const bytes = words.flatMap((word) => (word.match(/../g) ?? []).reverse().map((byte) => Number.parseInt(byte, 16)))
  if (bytes.length === 4) return bytes.join('.')
  if (bytes.slice(0, 10).every((byte) => byte === 0) && bytes[10] === 255) return bytes.slice(12).join('.')
  const groups = Array.from({ length: 8 }, (_, at) => ((bytes[at * 2]! << 8) | bytes[at * 2 + 1]!).toString(16))
  return new URL(`http://[${groups.join(':')}]/`).hostname.slice(1, -1)
}

/** Maps socket inodes to the process with the lowest pid that has them open. */
async function findHolders(first: number, isShared: boolean): Promise<Map<number, SocketHolder>> {
  const holders = new Map<number, SocketHolder>()
  let budget = maxOpenFiles
  for (const pid of isShared ? await descendantsOf(first) : await membersOf(first)) {
    const files = await readdir(`/proc/${pid}/fd`).catch(() => [])
    let holder: SocketHolder | undefined
    for (const file of files) {
      if (budget-- <= 0) return holders
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

/** Empty when the process has exited. */
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
