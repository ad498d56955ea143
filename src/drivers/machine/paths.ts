// The files of a machine on the host. All of them belong to the host, except the layer that the machine writes.
import type { Home } from '../host/home.ts'

export interface MachinePaths {
  directory: string
  /** The configuration of the next start. */
  config: string
  /** The arguments, environment, files and mounts that the user configured. */
  program: string
  /** The version that `config` and `program` belong to. */
  version: string
  /** The nftables rules of its network policy, if it has one. */
  traffic: string
  /** The restart policy that the finish script applies. */
  policy: string
  /** Exists while the machine is being stopped; holds the signal number. */
  stopping: string
  /** The states of its containers, while their supervisor runs. */
  containers: string
  /** The reason why the last start failed. */
  failed: string
  /** One line for each exit of the program. */
  exits: string
  restarts: string
  /** Writing a byte to this pipe ends the delay before a restart. */
  wake: string
  /** The pipe from the program's standard error to its logger. */
  stderr: string
  /** The supervisor's name for the program. */
  supervisedName: string
  /** The supervisor's name for the logger of standard error. */
  errorLogName: string
  /** Mounted read-only at `/.fly` inside; holds the socket of the API. */
  inside: string
  /** Holds the directories `stdout` and `stderr`. */
  log: string
  /** Has what `log` had at the end of a removed machine. */
  keptLog: string
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
    containers: `${directory}/containers`,
    failed: `${directory}/failed`,
    exits: `${directory}/exits`,
    restarts: `${directory}/restarts`,
    wake: `${directory}/wake`,
    stderr: `${directory}/stderr`,
    inside: `${directory}/api/inside`,
    supervisedName: `machine-${id}`,
    errorLogName: `machine-${id}-stderr`,
    log: `${home.log}/machine-${id}`,
    keptLog: `${keptLogDirectory(home)}/${id}`,
    service: `${home.tree}/machine-${id}`,
  }
}

/** Holds the logs of removed machines. */
export function keptLogDirectory(home: Pick<Home, 'path'>): string {
  return `${home.path}/machine-log`
}

/** Holds one file per machine, which the finish script writes when the program has exited. */
export function changeDirectory(home: Pick<Home, 'run'>): string {
  return `${home.run}/machine`
}
