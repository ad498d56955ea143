// Listening sockets that outlive the edge process. s6-fdholderd, a service of its own, has a copy of each. While no edge
// process runs, clients wait in the queues of the sockets, and the next process gets the sockets when it starts.
import { spawn } from 'node:child_process'
import { closeSync, statSync } from 'node:fs'
import type { Server } from 'node:net'
import type { Logger } from 'pino'
import { baseEnvironment, run } from '../../drivers/host/process.ts'
import { inheritedEnvironment } from '../config.ts'
import { maxHeldSockets } from './holder-service.ts'

/** How often to look whether the holder was restarted, and is empty. */
const checkIntervalMs = 1_000
const timeoutArguments = ['-t', '2000']

/** Node documents how to listen on a descriptor, but not how to find that of a server. */
type ServerWithHandle = Server & { _handle: { fd: number } | null }

export class SocketHolder {
  private readonly path: string | null
  private readonly log: Logger
  /** The sockets of the previous process that this one does not use yet, by name. */
  private readonly inherited: Map<string, number>
  private readonly servers = new Map<string, Server>()
  private queue = Promise.resolve()
  /** The socket file of the holder that was brought up to date; a restarted holder makes another one. */
  private synced: string | undefined
  private hasFailed = false

  /** `path` is the socket of the holder; with null nothing outlives this process. */
  constructor(path: string | null, log: Logger) {
    this.path = path
    this.log = log
    this.inherited = takeInherited(inheritedEnvironment())
    if (path !== null) setInterval(() => this.check(path), checkIntervalMs).unref()
  }

  /** Returns the descriptor of a socket of the previous process. */
  find(name: string): number | undefined {
    return this.inherited.get(name)
  }

  /** Node has closed the descriptor. */
  forget(name: string): void {
    this.inherited.delete(name)
  }

  /** Closes sockets of the previous process that are not needed any more. */
  discard(isUnused: (name: string) => boolean): void {
    for (const [name, descriptor] of this.inherited) {
      if (!isUnused(name)) continue
      this.inherited.delete(name)
      closeSync(descriptor)
    }
  }

  /** The server owns the descriptor of this name from now on, if there is one. */
  add(name: string, server: Server): void {
    this.inherited.delete(name)
    this.servers.set(name, server)
  }

  remove(server: Server): void {
    const name = this.nameOf(server)
    if (name !== undefined) this.servers.delete(name)
  }

  nameOf(server: Server): string | undefined {
    return [...this.servers].find(([, each]) => each === server)?.[0]
  }

  private check(path: string): void {
    if (this.synced === undefined || this.synced !== identify(path)) void this.sync()
  }

  /** Makes the holder keep exactly the sockets that are in use. Resolves also when that fails; it is then tried again. */
  sync(): Promise<void> {
    const { path } = this
    if (path === null) return this.queue
    this.queue = this.queue
      .then(() => this.update(path))
      .then(
        () => {
          this.hasFailed = false
        },
        (err) => {
          this.synced = undefined
          if (!this.hasFailed) this.log.warn({ err }, 'holding listening sockets failed; trying again')
          this.hasFailed = true
        },
      )
    return this.queue
  }

  private async update(path: string): Promise<void> {
    const holder = identify(path)
    const { stdout } = await run('s6-fdholder-list', [...timeoutArguments, path])
    const held = new Set(stdout.split('\n').filter((name) => name !== ''))
    // In reverse order the socket of the edge itself comes before those of apps.
    const names = [...this.servers.keys(), ...this.inherited.keys()].sort().reverse()
    const wanted = new Set(names.slice(0, maxHeldSockets))
    for (const name of held) {
      if (!wanted.has(name)) await run('s6-fdholder-delete', [...timeoutArguments, path, name])
    }
    await store(path, new Map([...this.servers].filter(([name]) => wanted.has(name) && !held.has(name))))
    this.synced = holder
  }
}

function identify(path: string): string | undefined {
  const found = statSync(path, { throwIfNoEntry: false })
  return found && `${found.ino} ${found.ctimeMs}`
}

/** Reads the descriptors that s6-fdholder-getdump has passed to this process, and hides them from its children. */
export function takeInherited(environment: NodeJS.ProcessEnv): Map<string, number> {
  const found = new Map<string, number>()
  for (let index = 0; index < Number(environment['S6_FD#'] ?? 0); index++) {
    found.set(environment[`S6_FDID_${index}`]!, Number(environment[`S6_FD_${index}`]))
  }
  for (const name of Object.keys(environment)) if (/^S6_FD/.test(name)) delete environment[name]
  return found
}

function store(path: string, servers: Map<string, Server>): Promise<void> {
  const environment: Record<string, string> = { ...baseEnvironment }
  const descriptors: number[] = []
  for (const [name, server] of servers) {
    const handle = (server as ServerWithHandle)._handle
    if (!handle) continue
    environment[`S6_FDID_${descriptors.length}`] = name
    // Not as standard input, which Node would make blocking for this process, too.
    environment[`S6_FD_${descriptors.length}`] = String(3 + descriptors.length)
    descriptors.push(handle.fd)
  }
  if (descriptors.length === 0) return Promise.resolve()
  environment['S6_FD#'] = String(descriptors.length)
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const child = spawn('s6-fdholder-setdump', [...timeoutArguments, path], {
    env: environment,
    stdio: ['ignore', 'inherit', 'inherit', ...descriptors],
  })
  child.once('error', reject)
  child.once('exit', (code, signal) => {
    if (code === 0) resolve()
    else reject(new Error(`s6-fdholder-setdump ended with ${signal ?? code}`))
  })
  return promise
}
