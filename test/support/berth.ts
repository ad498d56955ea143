import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { inject } from 'vitest'
import { removeDirectory } from './directory.ts'
import { platformPorts } from './port.ts'
import { until } from './until.ts'

const checkout = new URL('../../berth', import.meta.url).pathname
const run = promisify(execFile)

export interface Answer {
  status: number
  /** Whatever shape a test expects. */
  body: ReturnType<typeof JSON.parse>
  headers: Headers
}

/** A real platform with its own home, used only through its commands and its API. */
export class Berth {
  readonly home: string
  private readonly launcher: string
  readonly environment: Record<string, string>
  readonly children: ChildProcess[] = []
  output = ''

  constructor(
    environment: Record<string, string> = {},
    /** The `berth` program to run instead of that of this checkout. */
    launcher = checkout,
  ) {
    this.launcher = launcher
    this.home = mkdtempSync(join(tmpdir(), 'berth-e2e-'))
    chmodSync(this.home, 0o711)
    // Hard links instead of copies: the files are only read.
    for (const part of ['toolchain', 'sandbox-base']) {
      execFileSync('cp', ['-al', join(inject('preparedHome'), part), this.home])
    }
    this.environment = {
      PATH: process.env.PATH ?? '',
      HOME: process.env.HOME ?? '/',
      BERTH_HOME: this.home,
      BERTH_API_LISTEN: '127.0.0.1:0',
      BERTH_SANDBOX_LISTEN: '127.0.0.1:0',
      BERTH_EDGE_LISTEN: '127.0.0.1:0',
      // The registries of tests listen on loopback.
      BERTH_OUTBOUND_ALLOW: '127.0.0.1',
      BERTH_PG_PORTS: `${platformPorts.first}-${platformPorts.last}`,
      ...environment,
    }
  }

  /** Starts a long-running command and keeps it to be ended in `destroy`. */
  spawn(...args: string[]): ChildProcess {
    const child = spawn(this.launcher, args, { env: this.environment, stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (data) => {
        this.output += data
      })
    }
    this.children.push(child)
    return child
  }

  /** Starts the control plane and waits until it answers. */
  async up(): Promise<ChildProcess> {
    const child = this.spawn('up')
    await until(() => {
      if (child.exitCode !== null) throw new Error(`berth up exited with ${child.exitCode}: ${this.output}`)
      return this.answersAs(child)
    }, 120)
    return child
  }

  private answersAs(child: ChildProcess): boolean {
    return existsSync(`${this.home}/run/addresses.json`) && this.output.includes(`"pid":${child.pid},"api":`)
  }

  get addresses(): { api: string; sandbox: string; edge: string } {
    return JSON.parse(readFileSync(`${this.home}/run/addresses.json`, 'utf8'))
  }

  get token(): string {
    return this.environment.BERTH_TOKEN ?? readFileSync(`${this.home}/token`, 'utf8').trim()
  }

  async call(method: string, path: string, body?: object, headers: Record<string, string> = {}): Promise<Answer> {
    const reply = await fetch(`${this.addresses.api}${path}`, {
      method,
      headers: { authorization: `Bearer ${this.token}`, ...headers },
      ...(body ? { body: JSON.stringify(body) } : {}),
    })
    const text = await reply.text()
    const isJson = /^application\/json\b/.test(reply.headers.get('content-type') ?? '') && text !== ''
    return { status: reply.status, body: isJson ? JSON.parse(text) : text, headers: reply.headers }
  }

  /** Returns the body of a response that must be successful. */
  async ok(method: string, path: string, body?: object): Promise<Answer['body']> {
    const reply = await this.call(method, path, body)
    if (reply.status >= 300) throw new Error(`${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
    return reply.body
  }

  cli(...args: string[]): Promise<{ stdout: string; stderr: string }> {
    return run(this.launcher, args, { env: this.environment })
  }

  /** Ends every process and removes the home, whatever state the test left them in. */
  async destroy(): Promise<void> {
    await Promise.all(this.children.map((child) => end(child)))
    await this.cli('down')
    await removeDirectory(this.home)
  }
}

export async function end(child: ChildProcess, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = new Promise((resolve) => child.once('exit', resolve))
  child.kill(signal)
  await ended
}

/** A process may end by itself between being found and being killed. */
export function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch (err) {
    if ((err as NodeJS.ErrnoException).code !== 'ESRCH') throw err
  }
}
