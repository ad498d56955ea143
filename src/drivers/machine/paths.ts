// Where a machine lies on the host's disk. All of it belongs to the host, except the layer that the machine writes.
import type { Home } from '../host/home.ts'

export interface MachinePaths {
  directory: string
  /** What the next start goes by, and the words of the user in it. */
  config: string
  program: string
  /** The version that these are of. */
  version: string
  /** Rules for its network, if it is held to any. */
  traffic: string
  /** How it is started again when it ends, and whether it is to end. */
  policy: string
  stopping: string
  /** Why the last start was none. */
  failed: string
  /** A line for each end of its program. */
  exits: string
  restarts: string
  /** A byte here ends the wait for the next start. */
  wake: string
  /** Standard error of the program, on its way to its log. */
  stderr: string
  /** Of the host's supervisor: the program, and what writes its standard error to disk. */
  supervisedName: string
  errorLogName: string
  /** Shown inside as `/.fly`, not writable there: the socket of the platform. */
  inside: string
  /** `stdout` and `stderr` below it. */
  log: string
  service: string
}

export function machinePaths(home: Pick<Home, 'path' | 'tree' | 'log'>, id: string): MachinePaths {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`not the id of a machine: ${JSON.stringify(id)}`)
  const directory = `${home.path}/machine/${id}`
  return {
    directory,
    config: `${directory}/box.conf`,
    program: `${directory}/program`,
    version: `${directory}/version`,
    traffic: `${directory}/traffic.nft`,
    policy: `${directory}/policy`,
    stopping: `${directory}/stopping`,
    failed: `${directory}/failed`,
    exits: `${directory}/exits`,
    restarts: `${directory}/restarts`,
    wake: `${directory}/wake`,
    stderr: `${directory}/stderr`,
    inside: `${directory}/api/inside`,
    supervisedName: `machine-${id}`,
    errorLogName: `machine-${id}-stderr`,
    log: `${home.log}/machine-${id}`,
    service: `${home.tree}/machine-${id}`,
  }
}

/** A file for each machine, written to when its program has ended. */
export function changeDirectory(home: Pick<Home, 'run'>): string {
  return `${home.run}/machine`
}
