import type { Listener } from '../store/listen.ts'
import { type Lease, leaseDue, renewLeases, secondsToNext } from '../store/work.ts'
import { runLease, type Turn } from './loop.ts'
import type { World } from './step.ts'

export interface WorkerOptions {
  world: World
  /** Calls back when something was enqueued. */
  listen(woken: () => void): Listener
  /** How many resources are worked on at once. */
  slots: number
  onTurn(turn: Turn): void
}

export interface Worker {
  /** Stops leasing and waits for the steps that run. */
  stop(): Promise<void>
}

const pollSeconds = 1 // behind the notifications, which a broken connection loses
const renewMillis = 1_000 // a quarter of a lease

export function startWorker({ world, listen, slots, onTurn }: WorkerOptions): Worker {
  const running = new Map<Lease, Promise<void>>()
  let stopped = false
  let leasing = false
  let wokenWhileLeasing = false
  let timer: NodeJS.Timeout | undefined

  function start(lease: Lease): void {
    const work = runLease(world, lease).then((turn) => {
      running.delete(lease)
      onTurn(turn)
      wake()
    })
    running.set(lease, work)
  }

  /** One leasing statement at a time; a wake-up that arrives during it is acted on right after it. */
  function wake(): void {
    if (stopped || running.size >= slots) return
    if (leasing) {
      wokenWhileLeasing = true
      return
    }
    leasing = true
    fill()
      .catch(() => pollSeconds) // the database is away: try again with the next poll
      .then((seconds) => {
        leasing = false
        clearTimeout(timer)
        timer = setTimeout(wake, seconds * 1000)
        if (wokenWhileLeasing) {
          wokenWhileLeasing = false
          wake()
        }
      })
  }

  async function fill(): Promise<number> {
    const leases = await leaseDue(world.db, slots - running.size)
    for (const lease of leases) start(lease)
    // A step that ends wakes us, so with work in hand the poll is enough.
    return leases.length > 0 ? pollSeconds : secondsToNext(world.db, pollSeconds)
  }

  const renewal = setInterval(() => {
    const tokens = [...running.keys()].map((lease) => lease.token)
    if (tokens.length > 0) renewLeases(world.db, tokens).catch(() => {})
  }, renewMillis)

  const listener = listen(wake)
  wake()

  return {
    async stop() {
      stopped = true
      clearTimeout(timer)
      await listener.close()
      await Promise.all(running.values())
      clearInterval(renewal)
    },
  }
}
