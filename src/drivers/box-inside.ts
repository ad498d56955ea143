// The socket on which programs in a box reach the platform. It lies in a directory of the host that the box sees and
// cannot change, and a new socket appears in it under the same name: a box that runs sees that of a control plane that
// was started again.
import { chmodSync, chownSync, renameSync, rmSync } from 'node:fs'
import { createServer, type RequestListener, type Server } from 'node:http'
import { type BoxPaths, boxPaths, boxUid } from './box-paths.ts'
import { ensureDirectory } from './fresh.ts'
import type { Home } from './home.ts'

export interface InsideSocket {
  /** Answers what was asked; who follows something is cut off after a moment. */
  close(): Promise<void>
}

/** However many a box opens, the rest of the platform does not feel it. */
const maxConnections = 64
const requestTimeoutMs = 30_000
const closeMs = 2_000

/**
 * Everybody in the box may use the socket, and on the host nobody else: its directory lies in one that only the box's
 * own first user, who starts it, can pass through.
 */
export function ensureInsideDirectory({ directory, inside }: BoxPaths, uid: number | undefined): void {
  ensureDirectory(directory, { mode: 0o711 })
  const gate = `${directory}/api`
  ensureDirectory(gate, { mode: uid === undefined ? 0o700 : 0o710 })
  if (uid !== undefined) chownSync(gate, 0, uid)
  ensureDirectory(inside, { mode: 0o755 })
}

export async function listenInside(
  home: Pick<Home, 'path' | 'uidStart'>,
  box: { id: string; slot: number },
  answer: RequestListener,
): Promise<InsideSocket> {
  const paths = boxPaths(home, box.id)
  ensureInsideDirectory(paths, boxUid(home, box.slot))
  const server = createServer({ requireHostHeader: false, requestTimeout: requestTimeoutMs }, answer)
  server.maxConnections = maxConnections
  // Not longer than the name it gets: the kernel takes 107 bytes.
  const fresh = `${paths.inside}/.${process.pid.toString(36)}`
  rmSync(fresh, { force: true })
  try {
    await listen(server, fresh)
    chmodSync(fresh, 0o666)
    renameSync(fresh, `${paths.inside}/api.sock`)
  } catch (cause) {
    server.close()
    throw new Error(`listen inside the box ${box.id}`, { cause })
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
