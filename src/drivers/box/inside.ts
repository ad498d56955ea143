// The socket on which programs in a box reach the platform. It lies in a directory of the host that the box sees and
// cannot change: a box that runs sees that of a control plane that was started again.
import { chownSync } from 'node:fs'
import type { RequestListener } from 'node:http'
import { ensureDirectory } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { type LocalSocket, listenLocally } from '../network/local-socket.ts'
import { type BoxPaths, boxPaths, boxUid } from './paths.ts'

const maxConnections = 64

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

export function listenInside(
  home: Pick<Home, 'path' | 'uidStart'>,
  box: { id: string; slot: number },
  answer: RequestListener,
): Promise<LocalSocket> {
  const paths = boxPaths(home, box.id)
  ensureInsideDirectory(paths, boxUid(home, box.slot))
  return listenLocally(`${paths.inside}/api.sock`, { mode: 0o666, maxConnections }, answer)
}
