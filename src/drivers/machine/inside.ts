// The socket on which the programs of a machine reach the API, at `/.fly/api`. It lies in a directory of the host that is
// mounted read-only in the machine and closed to other users of the host.
import type { RequestListener } from 'node:http'
import { ensureDirectory } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import type { LocalSocket } from '../network/driver.ts'
import { listenOnSocket } from '../network/local-socket.ts'
import { type MachinePaths, machinePaths } from './paths.ts'

const maxConnections = 64

export function ensureInside({ directory, inside }: Pick<MachinePaths, 'directory' | 'inside'>): void {
  ensureDirectory(directory, { mode: 0o711 })
  ensureDirectory(`${directory}/api`, { mode: 0o700 })
  ensureDirectory(inside, { mode: 0o755 })
}

export function listenInMachine(
  home: Pick<Home, 'path' | 'tree' | 'log'>,
  id: string,
  answer: RequestListener,
): Promise<LocalSocket> {
  const paths = machinePaths(home, id)
  ensureInside(paths)
  return listenOnSocket(`${paths.inside}/api`, { mode: 0o666, maxConnections }, answer)
}
