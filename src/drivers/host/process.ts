import {
  type ChildProcess,
  type ChildProcessWithoutNullStreams,
  type SpawnOptionsWithoutStdio,
  spawn,
} from 'node:child_process'
import { accessSync, constants } from 'node:fs'
import { basename } from 'node:path'

const searchPath = ['/usr/local/sbin', '/usr/local/bin', '/usr/sbin', '/usr/bin', '/sbin', '/bin']

/** The environment of every child process. It does not depend on the environment of the platform. */
export const baseEnvironment = { PATH: searchPath.join(':'), LANG: 'C.UTF-8', TZ: 'UTC' }

// Output is kept in memory, so commands that print more than this must be read another way.
const maxOutputBytes = 16 * 1024 * 1024
const maxErrorBytes = 64 * 1024

export interface RunOptions {
  uid?: number | undefined
  gid?: number | undefined
  env?: Record<string, string> | undefined
  cwd?: string | undefined
  input?: string | Buffer | undefined
  timeoutSeconds?: number | undefined
}

export interface RunOutput {
  stdout: string
  stderr: string
}

export function isRoot(): boolean {
  return process.getuid?.() === 0
}

export function findCommand(name: string): string | undefined {
  return searchPath.map((directory) => `${directory}/${name}`).find(isExecutable)
}

export function commandExists(name: string): boolean {
  return findCommand(name) !== undefined
}

export function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

/**
 * Spawns a process with pipes. If no file descriptors are left, Node creates no streams and emits an error later, which
 * would be unhandled; this throws instead.
 */
export function spawnWithPipes(
  command: string,
  args: string[],
  options: SpawnOptionsWithoutStdio,
  pipes = 3,
): ChildProcessWithoutNullStreams {
  const stdio = Array<'pipe'>(pipes).fill('pipe')
  const child = spawn(command, args, { ...options, stdio }) as ChildProcessWithoutNullStreams
  if (child.stdout) return child
  ;(child as ChildProcess).on('error', () => undefined)
  throw new Error(`${basename(command)} could not be started: too many open files`)
}

/** A command ran and ended with an exit code that says no, unlike one that could not start or took too long. */
export class ExitError extends Error {}

/** Runs a command without a shell. Throws for any exit code but 0, with the last lines of its stderr. */
export async function run(command: string, args: string[], options: RunOptions = {}): Promise<RunOutput> {
  const { timeoutSeconds = 60, input = '' } = options
  const child = spawnWithPipes(command, args, {
    uid: options.uid,
    // With a uid alone the child would keep the group of the platform, which may be root.
    gid: options.gid ?? options.uid,
    env: { ...baseEnvironment, ...options.env },
    cwd: options.cwd ?? '/',
  })
  const name = basename(command)
  const output = captureOutput(child, name)
  const late = () => output.fail(`${name} did not end within ${timeoutSeconds} s`)
  const timeout = setTimeout(late, timeoutSeconds * 1000)
  // A command may end without reading its input. Its exit code says whether that is an error.
  child.stdin.on('error', () => undefined).end(input)
  try {
    return await output.ended
  } finally {
    clearTimeout(timeout)
  }
}

function captureOutput(child: ChildProcessWithoutNullStreams, name: string) {
  const { promise: ended, resolve, reject } = Promise.withResolvers<RunOutput>()
  const stdout: Buffer[] = []
  let stdoutBytes = 0
  let stderr = Buffer.alloc(0)

  function fail(reason: string, Kind: new (message: string, options: ErrorOptions) => Error = Error, cause?: unknown) {
    reject(new Kind(`${reason}${lastLines(stderr.toString())}`, { cause }))
    child.kill('SIGKILL')
    // A grandchild may hold the pipes open.
    child.stdout.destroy()
    child.stderr.destroy()
  }

  child.stdout.on('data', (chunk: Buffer) => {
    stdout.push(chunk)
    stdoutBytes += chunk.length
    if (stdoutBytes > maxOutputBytes) fail(`${name} printed more than ${maxOutputBytes} bytes`)
  })
  child.stderr.on('data', (chunk: Buffer) => {
    stderr = Buffer.concat([stderr, chunk]).subarray(-maxErrorBytes)
  })
  child.on('error', (error) => fail(`${name} could not be started`, Error, error))
  child.on('close', (code, signal) => {
    if (code === 0) resolve({ stdout: Buffer.concat(stdout).toString(), stderr: stderr.toString() })
    else if (signal === null) fail(`${name} exited with ${code}`, ExitError)
    else fail(`${name} was ended by ${signal}`)
  })
  return { ended, fail }
}

function lastLines(text: string): string {
  const lines = text.trimEnd().split('\n').slice(-8).join('\n')
  return lines === '' ? '' : `: ${lines}`
}
