import type { ChildProcess } from 'node:child_process'
import type { Writable } from 'node:stream'
import type { OutputStream } from '../../model/output-stream.ts'
import type { BoxSpec } from '../../model/sandbox/box.ts'

export interface BoxCommand {
  argv: [string, ...string[]]
  /** Added to PATH, HOME, USER and LANG. */
  env?: Record<string, string>
  /** An absolute path inside the box. The default is the working directory of the image, or else the home directory. */
  dir?: string
}

export type BoxState =
  | { is: 'absent' }
  | { is: 'down' }
  | { is: 'up' /** The pid of the first process, in the pid namespace of the host. */; pid: number }

/** The isolation that boxes have on this host. */
export interface Isolation {
  kind: 'bubblewrap' | 'none'
  /** `own`: each box has an address; `host`: boxes use the network of the host; `none`: boxes have no network. */
  network: 'own' | 'host' | 'none'
  /** A sentence for operators that says what is missing and what follows from it. */
  gap?: string
  /** True where the disk quota of a box is enforced. */
  limitsStorage?: boolean
}

/** A program of the host that runs a command in a box, with the arguments and the environment it needs. */
export interface BoxEntry {
  program: string
  args: string[]
  env: Record<string, string>
}

/** A file operation inside a box failed with an error of the kernel, such as ENOENT. */
export class BoxFileError extends Error {
  readonly code: string
  readonly path: string
  /** An explanation where the code alone is not clear enough; otherwise empty. */
  readonly why: string

  constructor(code: string, path: string, why = '') {
    super(`${code}: ${path}`)
    this.code = code
    this.path = path
    this.why = why
  }
}

/** The box stopped before it could be entered, did not answer, or has no memory left for another process. */
export class BoxUnavailable extends Error {}

/** The box cannot start because of what it has written. The message says what is wrong, without paths of the host. */
export class BoxStartError extends Error {}

/**
 * A platform program that runs inside a box and does not depend on what is installed there. Both directions carry
 * records, which are lists of words, and may end with raw bytes.
 */
export interface BoxHelper {
  readonly input: Writable
  readonly exit: Promise<number | null>
  send(words: string[]): void
  /** Sends a body in pieces with their lengths in front and an empty one last, so that the helper notices truncation. */
  sendBody(body: AsyncIterable<Buffer>, onPiece?: () => void): Promise<void>
  /** The words of the next record; bytes that are not UTF-8 become U+FFFD. Fails after 30 s of silence if bounded. */
  next(waiting?: 'bounded' | 'forever'): Promise<[string, ...string[]]>
  /** The raw bytes after the last record. */
  bytes(): AsyncGenerator<Buffer>
  end(): void
}

export interface SessionEvents {
  onOutput(stream: OutputStream, data: Buffer): void
  /** There is room for input again. */
  onDrain(): void
  /** Called once, as the last event. */
  onEnd(code: number): void
}

/** A command in a box, held by a process that outlives this one. */
export interface BoxSession {
  /** The pid of the command inside the box, while it is known. */
  readonly pid: number | undefined
  /** The path of its program inside the box, once it is known. */
  readonly path: string | undefined
  /** Returns false when too much input is buffered; `onDrain` is called when there is room again. */
  write(data: Buffer): boolean
  endInput(): void
  resize(cols: number, rows: number): void
  signal(signal: number): void
  /** Without clients the command is ended after a while, even when this process has ended. */
  setAttached(isAttached: boolean): void
  pause(): void
  resume(): void
  /** The exit code needs to be kept no longer. */
  release(): void
  /** Leaves the session running. There are no events any more. */
  leave(): void
}

export interface SessionStart {
  /** Digits; unique in the box. */
  id: string
  isTerminal: boolean
  cols: number
  rows: number
  /** How long it may run without clients; null means no limit. */
  maxRunAfterDisconnectMs: number | null
  /** Returned unchanged when the session is found again. */
  facts: string
}

/** A session that another process started, which has ended since. */
export interface FoundSession {
  boxId: string
  id: string
  facts: string
  cols: number
  rows: number
  /** The time of the last output in milliseconds since the epoch; 0 when there was none. */
  lastOutputAt: number
  history: { stream: OutputStream; data: Buffer }[]
  /** Delivers what comes after the history. */
  follow(events: SessionEvents): BoxSession
  /** Instead of following it. */
  leave(): void
}

/** Identifies the process that holds a listening socket. */
export interface SocketHolder {
  /** The pid inside the box; 0 when unknown. */
  pid: number
  /** The start time of the process in clock ticks since boot; 0 when unknown. */
  since: number
}

export interface ListeningPort extends SocketHolder {
  port: number
  /** The address the socket is bound to. */
  address: string
  /** The inodes of the sockets, which tell successive listeners on one port apart. */
  sockets: number[]
}

/** Runs commands and helpers in boxes. */
export interface BoxCommands {
  /**
   * Runs a command with pipes on 0, 1 and 2. The child exits with the code of the command; 127 when there is no such
   * program, 126 when it cannot be executed, 128 + n after signal n.
   */
  spawnInBox(spec: BoxSpec, command: BoxCommand): ChildProcess
  /** Starts a command that outlives this process. Problems with the start are output of the command. */
  startSession(spec: BoxSpec, command: BoxCommand, start: SessionStart, events: SessionEvents): BoxSession
  /** Finds the sessions that an earlier process started. To be called once, before any is started. */
  findSessions(onFound: (session: FoundSession) => void): Promise<void>
  /** Signals the command that the process `pid`, a child of `spawnInBox`, runs in the box. */
  signalCommand(pid: number, signal: number): void
  /** The pid of that command inside the box, if it has started. */
  findCommandPid(pid: number): number | undefined
  /** The path inside the box of the program that the command runs, once it has been looked up. */
  findCommandPath(pid: number): string | undefined
  /** Starts a file operation. The first word names it, the others are its arguments; see `file/file.pl`. */
  startFileHelper(spec: BoxSpec, ...words: string[]): BoxHelper
  /** Connects to the first target that answers; after the first record the helper carries the bytes of the connection. */
  startDialHelper(spec: BoxSpec, dial: { port: number; timeoutSeconds: number; targets: string[] }): BoxHelper
}

/** Boxes: environments for the programs of users, each with its own root filesystem, processes and network. */
export interface BoxDriver extends BoxCommands {
  isolation(): Promise<Isolation>
  /** True where a network policy can be enforced. */
  policiesPossible(): boolean
  /**
   * Starts the box unless it runs already, and puts its limits and its policy in force. Commands can enter it when this
   * resolves. Fails with `BoxStartError` if its first process ends at once; the box is down then.
   */
  ensureBox(spec: BoxSpec): Promise<void>
  inspectBox(id: string): Promise<BoxState>
  /** Ends every process in the box and keeps its disk. It stays down until `ensureBox` is called again. */
  stopBox(id: string): Promise<void>
  /** Removes every process, mount, network interface, control group and file of the box. */
  removeBox(spec: BoxSpec): Promise<void>
  /** The ids of all boxes of which something is left on the host: files, processes, or control groups. */
  listBoxes(): string[]
  /** The slot that the box was last set up with. */
  findSlot(id: string): number | undefined
  /** Ends every process of a box and removes all of it except for what belongs to its slot, and its files if asked to. */
  removeStray(id: string, options: { keepFiles: boolean }): Promise<void>
  /** Removes the network interface and the firewall rules of a slot that no box uses. */
  removeSlot(slot: number): Promise<void>
  /** The address at which the host reaches listeners in the box, including those on its loopback interface. */
  addressOf(spec: BoxSpec): string
  /**
   * The TCP ports that processes of a box listen on, each once. `first` is the pid of its first process on the host,
   * `known` the holders of sockets found earlier, which are not looked up again.
   */
  readPorts(first: number, known: ReadonlyMap<number, SocketHolder>): Promise<ListeningPort[]>
}
