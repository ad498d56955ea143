import { existsSync } from 'node:fs'
import { waitUntil } from '../../../model/poll.ts'
import { ensureDirectory } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { withoutNewPrivileges } from '../../host/privilege.ts'
import type { Supervisor } from '../../s6/driver.ts'
import { clusterUsers, sharedWithServer } from '../users.ts'
import type { ImportSpec, ImportTask } from './driver.ts'
import type { ForwardSettings } from './forward.ts'
import { importPaths, importUser, sourcePort } from './paths.ts'

const program = new URL('forward.ts', import.meta.url).pathname
const startTimeoutSeconds = 20

/** Starts the process that connects to the source. It is a service, because it must survive the control plane. */
export async function ensureForwarder(
  { home, supervisor }: { home: Home; supervisor: Supervisor },
  id: string,
  { uid }: ImportSpec,
  { source, addresses }: ImportTask,
): Promise<void> {
  const paths = importPaths(home, id)
  const users = await clusterUsers(uid)
  ensureDirectory(paths.sockets, sharedWithServer(users))
  const settings: ForwardSettings = {
    socket: `${paths.sockets}/.s.PGSQL.${sourcePort}`,
    addresses,
    port: source.port,
    host: source.host,
    sslMode: source.sslMode,
    user: importUser(home, users.server) ?? null,
  }
  // Different settings are a different command, which restarts the service.
  const command = [process.execPath, '--disable-warning=ExperimentalWarning', program, JSON.stringify(settings)]
  await supervisor.ensureService(paths.forwarder, { command: withoutNewPrivileges(command), stopTimeoutSeconds: 1 })
  const isListening = () => existsSync(settings.socket)
  if (await waitUntil(isListening, startTimeoutSeconds)) return
  const log = supervisor.readLog(paths.forwarder, 5).join('\n')
  throw new Error(`start the forwarder of cluster ${id}: it does not listen. Its log ends with:\n${log}`)
}
