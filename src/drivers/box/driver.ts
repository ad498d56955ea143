import type { ChildProcess } from 'node:child_process'
import type { NetworkPolicy } from '../../model/sandbox/policy.ts'

/** What a box is made from. Everything outside that it needs has a name that follows from `id` and `slot`. */
export interface BoxSpec {
  id: string
  /** 1 to 1023, held by one box of this home at a time: its range of uids and its addresses follow from it. */
  slot: number
  hostname: string
  limits: { memoryMb: number; cpus: number; pids: number }
  /** What it may write, where the disk can hold it to that. */
  storageGb?: number
  /** Its root has no rights beyond those of any user: not over files of others, and it cannot become another. */
  isMinimal?: boolean
  /** Which names it may resolve and so reach; every one when there are no rules. */
  policy?: NetworkPolicy
  /** What it is made from instead of the programs of the host. */
  image?: BoxImage
}

export interface BoxImage {
  /** Null before it was pulled; then it cannot start. */
  digest: string | null
  /** Variables of its commands, unless others are given. */
  env: Record<string, string>
  /** Where its commands begin; its home when empty. */
  workingDir: string
}

export interface BoxCommand {
  argv: [string, ...string[]]
  /** On top of PATH, HOME, USER and LANG. */
  env?: Record<string, string>
  /** Absolute, as seen inside; what its image says, or else its home, when absent. */
  dir?: string
}

export type BoxState =
  | { is: 'absent' }
  | { is: 'down' }
  | { is: 'up' /** Of its first process, as the host counts. */; pid: number }

/** How programs are kept apart on this machine. */
export interface Isolation {
  kind: 'bubblewrap' | 'none'
  /** Each box has an address of its own, shares those of the host, or cannot be reached. */
  network: 'own' | 'host' | 'none'
  /** A sentence for people, when something is missing: what, and what it costs. */
  gap?: string
  /** Whether a box that has written what it may is kept from writing more. */
  limitsStorage?: boolean
}

/** A file operation inside a box ended with an error of the system, such as ENOENT. */
export class BoxFileError extends Error {
  readonly code: string
  readonly path: string
  /** Where there is more to say than the code says. */
  readonly why: string

  constructor(code: string, path: string, why = '') {
    super(`${code}: ${path}`)
    this.code = code
    this.path = path
    this.why = why
  }
}

/** Environments in which the programs of users run, each with its own root filesystem, processes and network. */
export interface BoxDriver {
  isolation(): Promise<Isolation>
  /** Whether `policy` of a box can be enforced here. */
  policiesPossible(): boolean
  /** Afterwards the box runs and commands can enter it. Starts no process when it runs already. */
  ensureBox(spec: BoxSpec): Promise<void>
  inspectBox(id: string): Promise<BoxState>
  /** Ends every process in it; what is on its disk stays. It stays down until it is ensured again. */
  stopBox(id: string): Promise<void>
  /** Nothing of it is left: no process, mount, interface, group or file. */
  removeBox(spec: BoxSpec): Promise<void>
  /** Pipes on 0, 1 and 2. Ends with the command's code; 127 when there is no such program, 126 when it cannot be run, 128 + n after a signal. */
  spawnInBox(spec: BoxSpec, command: BoxCommand): ChildProcess
  /**
   * The same as an outside program, for a terminal: program, arguments and environment to start it with. The terminal
   * becomes the command's own, so that it can also open it by name. As with pipes, the command and its group end when
   * whoever started the program dies, also by SIGKILL.
   */
  entry(spec: BoxSpec, command: BoxCommand): { program: string; args: string[]; env: Record<string, string> }
  /** Where a connection from the host reaches what listens inside, also on its loopback. */
  addressOf(spec: BoxSpec): string
}
