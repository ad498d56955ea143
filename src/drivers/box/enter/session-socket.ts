// The sockets of the processes that hold sessions, by which they are found again: run/exec/<box>/<session>. Only the
// platform can reach them: the directory is closed, and no box has it in its mounts.
import { existsSync, mkdirSync, readdirSync, rmdirSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import type { Home } from '../../host/home.ts'
import type { FoundSession, SessionEvents } from '../driver.ts'
import { SessionConnection } from './session.ts'

type Runs = Pick<Home, 'run'>

/** Only a process that is stopped does not answer at once. */
const greetingMs = 2_000

export function ensureSocket(home: Runs, boxId: string, id: string): string {
  mkdirSync(directoryOf(home), { recursive: true, mode: 0o700 })
  mkdirSync(`${directoryOf(home)}/${boxId}`, { recursive: true, mode: 0o700 })
  return `${directoryOf(home)}/${boxId}/${id}`
}

export function removeSockets(home: Runs, boxId: string): void {
  rmSync(`${directoryOf(home)}/${boxId}`, { recursive: true, force: true })
}

/**
 * Reports every session that is held, and removes the sockets of processes that were killed. One whose process is stopped is
 * reported when it continues, which is not waited for.
 */
export async function findSessions(home: Runs, onFound: (session: FoundSession) => void): Promise<void> {
  const { promise: late, resolve } = Promise.withResolvers<void>()
  const timer = setTimeout(resolve, greetingMs)
  const all = list(directoryOf(home)).map(async (boxId) => {
    const directory = `${directoryOf(home)}/${boxId}`
    await Promise.all(list(directory).map((id) => greet(directory, { boxId, id }, onFound)))
    removeIfEmpty(directory)
  })
  await Promise.race([Promise.all(all), late])
  clearTimeout(timer)
}

async function greet(
  directory: string,
  session: Pick<FoundSession, 'boxId' | 'id'>,
  onFound: (session: FoundSession) => void,
): Promise<void> {
  const socketFile = `${directory}/${session.id}`
  const connection = new SessionConnection(connect(socketFile), socketFile)
  const greeting = await connection.greeting
  const functions = { follow: (events: SessionEvents) => connection.follow(events), leave: () => connection.leave() }
  if (greeting) onFound({ ...session, ...greeting, ...functions })
  else if (connection.isRefused) rmSync(socketFile, { force: true })
}

function directoryOf({ run }: Runs): string {
  return `${run}/exec`
}

function list(directory: string): string[] {
  return existsSync(directory) ? readdirSync(directory) : []
}

function removeIfEmpty(directory: string): void {
  try {
    rmdirSync(directory)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOTEMPTY' && existsSync(directory)) throw error
  }
}
