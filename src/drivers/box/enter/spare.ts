// Starting `enter.pl` takes longer than entering a box. So a spare process is started whenever a command has ended, and
// waits for its request on an extra socket. It is in no box until then, and ends after a while or with this process.
import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import type { Socket } from 'node:net'
import { baseEnvironment, spawnWithPipes } from '../../host/process.ts'
import { findProcess } from '../../host/process-list.ts'
import { enterProgram, renderWords } from './enter.ts'

export interface EnterSpares {
  /** Returns the process that enters the box, with the request sent to it. */
  start(request: Record<string, string[]>): ChildProcessWithoutNullStreams
  /** Starts a process that outlives this one, and returns the socket to it; see hold.pl. */
  startSession(request: Record<string, string[]>): Socket
}

/** A spare only pays off for callers that run commands in quick succession. */
const defaultKeepMs = 10_000

/** Spawning blocks the event loop, so the exit of the previous command is reported first. */
const prepareDelayMs = 1

const channelDescriptor = 3

/** `enter.pl` overwrites its arguments and environment with the path it runs, so they must be long enough for one. */
const room = ' '.repeat(1024)

export function enterSpares(keepMs = defaultKeepMs): EnterSpares {
  let spare: ChildProcessWithoutNullStreams | undefined
  let expiry: NodeJS.Timeout | undefined

  function take(): ChildProcessWithoutNullStreams {
    clearTimeout(expiry)
    const taken = spare
    spare = undefined
    if (!taken?.pid || !findProcess(taken.pid)) return spawnEnter() // the spare may have been killed
    for (const part of [taken, ...socketsOf(taken)]) part.ref()
    return taken
  }

  function prepare(): void {
    if (spare) return
    try {
      spare = spawnEnter()
    } catch {
      return // the next command fails with the same error and reports it
    }
    const prepared = spare
    prepared.on('error', () => {
      if (spare === prepared) spare = undefined
    })
    for (const part of [prepared, ...socketsOf(prepared)]) part.unref()
    expiry = setTimeout(() => {
      spare = undefined
      channelOf(prepared).end()
    }, keepMs).unref()
  }

  function prepareSoon(): void {
    setTimeout(prepare, prepareDelayMs).unref()
  }

  return {
    start(request) {
      const message = renderMessage(request)
      const process = take()
      const channel = channelOf(process)
      channel.end(message, () => channel.destroy())
      process.once('exit', prepareSoon)
      return process
    },

    startSession(request) {
      const message = renderMessage(request)
      const process = take()
      const channel = channelOf(process)
      process.on('error', (error) => channel.destroy(error))
      for (const stream of [process.stdin, process.stdout, process.stderr]) stream.destroy()
      process.unref()
      channel.write(message)
      channel.once('close', prepareSoon)
      return channel
    },
  }
}

/** The request with its length in front. */
function renderMessage(request: Record<string, string[]>): Buffer {
  const words = Buffer.from(renderWords(request))
  const length = Buffer.alloc(4)
  length.writeUInt32BE(words.length)
  return Buffer.concat([length, words])
}

/** Starts it in a new session, so that signals to the foreground process group of the platform's terminal spare it. */
function spawnEnter(): ChildProcessWithoutNullStreams {
  const { program, args } = enterProgram()
  const env = { PATH: baseEnvironment.PATH, BERTH_ROOM: room }
  const child = spawnWithPipes(program, args, { env, cwd: '/', detached: true }, channelDescriptor + 1)
  channelOf(child).on('error', () => undefined) // its exit code says why it did not read the request
  return child
}

function socketsOf(process: ChildProcessWithoutNullStreams): Socket[] {
  return process.stdio.filter((stream) => stream !== null && stream !== undefined) as unknown as Socket[]
}

function channelOf(process: ChildProcessWithoutNullStreams): Socket {
  return process.stdio[channelDescriptor] as unknown as Socket
}
