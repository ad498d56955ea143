// The socket of the platform API in a box. The box sees its directory, not the socket itself, so a running box also
// finds the socket of a control plane that was restarted.
import type { RequestListener } from 'node:http'
import { ensureDirectory } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import type { LocalSocket } from '../network/driver.ts'
import { listenOnSocket } from '../network/local-socket.ts'
import { ensureBoxDirectory } from './directory.ts'
import { type BoxPaths, boxPaths, boxUid } from './paths.ts'

const maxConnections = 64

/**
 * All users in the box may connect to the socket, and other users of the host may not: the parent of its directory is
 * open to the platform and to the root user of the box only.
 */
export function ensureInsideDirectory({ directory, inside }: BoxPaths, uid: number | undefined): void {
  for (const closed of [directory, `${directory}/api`]) ensureBoxDirectory(closed, uid)
  ensureDirectory(inside, { mode: 0o755 })
}

export function listenInside(
  home: Pick<Home, 'path' | 'uidStart'>,
  box: { id: string; slot: number },
  answer: RequestListener,
): Promise<LocalSocket> {
  const paths = boxPaths(home, box.id)
  ensureInsideDirectory(paths, boxUid(home, box.slot))
  return listenOnSocket(`${paths.inside}/api.sock`, { mode: 0o666, maxConnections }, answer)
}
