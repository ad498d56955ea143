// The program that enters boxes takes longer to start than to enter. So the next one is started when one has ended, and
// waits to be told what to do. It is in no box until then, and ends when nobody needs it for a while, or with this process.
import type { ChildProcessWithoutNullStreams } from 'node:child_process'
import type { Socket } from 'node:net'
import { baseEnvironment, spawnWithPipes } from '../../host/process.ts'
import { findProcess } from '../../host/process-list.ts'
import { enterer, renderWords } from './enter.ts'

export interface EnterSpares {
  /** The program that enters, told what to do. */
  start(request: Record<string, string[]>): ChildProcessWithoutNullStreams
}

/** Whoever runs commands one after the other notices the difference. */
const longMs = 10_000

/** Whoever waits for a command is told of its end first: starting a program holds everybody up. */
const afterMs = 1

const ordersAt = 3

/** The program tells the path of what it runs where its arguments and variables are, so that there must be enough of them. */
const room = ' '.repeat(1024)

export function enterSpares(keptMs = longMs): EnterSpares {
  let spare: ChildProcessWithoutNullStreams | undefined
  let dropping: NodeJS.Timeout | undefined

  function take(): ChildProcessWithoutNullStreams {
    clearTimeout(dropping)
    const taken = spare
    spare = undefined
    if (!taken?.pid || !findProcess(taken.pid)) return begin() // somebody may have killed it
    for (const part of [taken, ...socketsOf(taken)]) part.ref()
    return taken
  }

  function prepare(): void {
    if (spare) return
    try {
      spare = begin()
    } catch {
      return // whoever needs it is told why
    }
    const begun = spare
    begun.on('error', () => {
      if (spare === begun) spare = undefined
    })
    for (const part of [begun, ...socketsOf(begun)]) part.unref()
    dropping = setTimeout(() => {
      spare = undefined
      ordersOf(begun).end()
    }, keptMs).unref()
  }

  return {
    start(request) {
      const words = renderWords(request)
      const program = take()
      const orders = ordersOf(program)
      orders.end(words, () => orders.destroy())
      program.once('exit', () => setTimeout(prepare, afterMs).unref())
      return program
    },
  }
}

/** A session of its own, so that no signal reaches it that is for all who share the platform's terminal. */
function begin(): ChildProcessWithoutNullStreams {
  const { program, args } = enterer()
  const env = { PATH: baseEnvironment.PATH, BERTH_ROOM: room }
  const begun = spawnWithPipes(program, args, { env, cwd: '/', detached: true }, ordersAt + 1)
  ordersOf(begun).on('error', () => undefined) // its end says why it could not be told
  return begun
}

function socketsOf(program: ChildProcessWithoutNullStreams): Socket[] {
  return program.stdio.filter((stream) => stream !== null && stream !== undefined) as unknown as Socket[]
}

function ordersOf(program: ChildProcessWithoutNullStreams): Socket {
  return program.stdio[ordersAt] as unknown as Socket
}
