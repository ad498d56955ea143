// Turns serialize changes of one thing of the world, such as a box, among all processes that use this state database. They
// are advisory locks of one connection per process, so a process that dies gives up its turns, and no transaction is open
// while a task works. A task reads the rows it depends on after it has its turn. It never waits for a second turn, so turns
// cannot deadlock.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { unavailable } from '../model/errors.ts'
import { keyedQueue } from '../model/keyed-queue.ts'

export interface Turns {
  /** Runs the task when no other one has the turn of this key. Returns undefined if others have it for all of `waitMs`. */
  take<T>(key: string, waitMs: number, task: () => Promise<T>): Promise<{ value: T } | undefined>
}

export interface OpenTurns extends Turns {
  close(): Promise<void>
}

/** Keeps the locks apart from those of others with a hash as number. */
const seed = 0x7475726e

/** The pause between two attempts while another process has the turn, which is rare. */
const pollMs = 20

type Unlock = () => Promise<void>
/** Returns undefined when another process has the lock. */
type Lock = (key: string) => Promise<Unlock | undefined>

export function openTurns(config: pg.ClientConfig): OpenTurns {
  const { lock, close } = openConnection(config)
  return { ...turnsWith(lock), close }
}

/** The locks of one connection do not exclude each other, so the tasks of one process wait in a queue first. */
export function turnsWith(lock: Lock): Turns {
  const queue = keyedQueue()
  return {
    async take<T>(key: string, waitMs: number, task: () => Promise<T>) {
      const gaveUp = Promise.withResolvers<undefined>()
      const patience = { isOver: false }
      const timer = setTimeout(() => {
        patience.isOver = true
        gaveUp.resolve(undefined)
      }, waitMs)
      const turn = queue(key, async () => {
        const unlock = await lockInTime(lock, key, patience)
        if (!unlock) return undefined
        clearTimeout(timer)
        try {
          return { value: await task() }
        } finally {
          await unlock()
        }
      })
      turn.catch(() => undefined) // nobody waits for it after giving up
      return Promise.race([turn, gaveUp.promise]).finally(() => clearTimeout(timer))
    },
  }
}

/** Returns undefined when the caller has given up, so that the task must not run any more. */
async function lockInTime(lock: Lock, key: string, patience: { isOver: boolean }): Promise<Unlock | undefined> {
  while (!patience.isOver) {
    const unlock = await lock(key)
    if (unlock && !patience.isOver) return unlock
    await (unlock ? unlock() : sleep(pollMs))
  }
  return undefined
}

function openConnection(config: pg.ClientConfig): { lock: Lock; close(): Promise<void> } {
  let current: Promise<pg.Client> | undefined

  function connect(): Promise<pg.Client> {
    const client = new pg.Client({ connectionTimeoutMillis: 2_000, ...config })
    const connecting = client.connect().then(() => client)
    const discard = () => {
      if (current === connecting) current = undefined
    }
    client.on('error', discard)
    client.on('end', discard)
    connecting.catch(discard)
    return connecting
  }

  async function lock(key: string): Promise<Unlock | undefined> {
    current ??= connect()
    const client = await current.catch((error) => {
      throw unavailable('the state database cannot be reached; try again in a moment', error)
    })
    const { rows } = await client.query({ name: 'take-turn', text: statement('pg_try_advisory_lock'), values: [key] })
    if (!rows[0].done) return undefined
    return async () => {
      // If the connection is lost, the server has released the lock.
      await client
        .query({ name: 'end-turn', text: statement('pg_advisory_unlock'), values: [key] })
        .catch(() => undefined)
    }
  }

  return {
    lock,
    async close() {
      const client = await current?.catch(() => undefined)
      await client?.end().catch(() => undefined)
    },
  }
}

function statement(name: string): string {
  return `select ${name}(hashtextextended($1, ${seed})) as done`
}
