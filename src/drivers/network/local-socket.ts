// HTTP on a socket in the file system. A new one appears under the same name: those who connect by it find whoever
// listens now.
import { chmodSync, chownSync, renameSync, rmSync } from 'node:fs'
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { dirname } from 'node:path'

export interface LocalSocket {
  /** Answers what was asked; who follows something is cut off after a moment. */
  close(): Promise<void>
}

export interface LocalSocketOptions {
  mode: number
  /** Whose it is; that of this process when not given. */
  uid?: number | undefined
  /** However many are opened, the rest of the platform does not feel it. */
  maxConnections: number
}

const timeouts = { requireHostHeader: false, requestTimeout: 30_000 }
const sourceTimeoutMs = 5_000
const longestSource = 107
const closeMs = 2_000

export function listenLocally(
  path: string,
  options: LocalSocketOptions,
  answer: RequestListener,
): Promise<LocalSocket> {
  return listenWith(createServer(timeouts, answer), path, options)
}

/** For connections that another process leads here, each with a line before the rest that says where it comes from. */
export function listenLed(
  path: string,
  options: LocalSocketOptions,
  answer: (request: IncomingMessage, response: ServerResponse, from: string) => void,
): Promise<LocalSocket> {
  const sources = new WeakMap<Socket, string>()
  const server = createServer(timeouts, (request, response) =>
    answer(request, response, sources.get(request.socket) ?? ''),
  )
  const [serve] = server.listeners('connection')
  server.removeAllListeners('connection').on('connection', (socket: Socket) =>
    readSource(socket, (from) => {
      sources.set(socket, from)
      serve!.call(server, socket)
    }),
  )
  return listenWith(server, path, options)
}

/** The first version of the PROXY protocol. */
function readSource(socket: Socket, found: (from: string) => void): void {
  const late = setTimeout(() => socket.destroy(), sourceTimeoutMs)
  let read = Buffer.alloc(0)
  const take = (data: Buffer) => {
    read = Buffer.concat([read, data])
    const end = read.indexOf('\r\n')
    if (end < 0 && read.length <= longestSource) return
    clearTimeout(late)
    socket.off('data', take).pause()
    const from = /^PROXY TCP6 (\S+) /.exec(read.toString('latin1', 0, end))?.[1]
    if (end < 0 || from === undefined) {
      socket.destroy()
      return
    }
    if (read.length > end + 2) socket.unshift(read.subarray(end + 2))
    found(from)
    socket.resume()
  }
  socket.on('error', () => undefined).on('close', () => clearTimeout(late))
  socket.on('data', take)
}

async function listenWith(
  server: Server,
  path: string,
  { mode, uid, maxConnections }: LocalSocketOptions,
): Promise<LocalSocket> {
  server.maxConnections = maxConnections
  // Not longer than the name it gets: the kernel takes 107 bytes.
  const fresh = `${dirname(path)}/.${process.pid.toString(36)}`
  rmSync(fresh, { force: true })
  try {
    await listen(server, fresh)
    chmodSync(fresh, mode)
    if (uid !== undefined) chownSync(fresh, uid, uid)
    renameSync(fresh, path)
  } catch (cause) {
    server.close()
    throw new Error(`listen at ${path}`, { cause })
  }
  return { close: () => close(server) }
}

function listen(server: Server, path: string): Promise<void> {
  return new Promise((resolve, reject) => {
    // Later ones are about connections that could not be taken: whoever made them hears of it.
    server.on('error', reject)
    server.listen(path, resolve)
  })
}

function close(server: Server): Promise<void> {
  return new Promise((resolve) => {
    const cut = setTimeout(() => server.closeAllConnections(), closeMs)
    server.close(() => {
      clearTimeout(cut)
      resolve()
    })
  })
}
