import type { Listener } from '../store/listen.ts'
import { type Lease, leaseDue, renewLeases, secondsToNext } from '../store/work.ts'
import { runLease, type StepReport } from './loop.ts'
import type { World } from './step.ts'

export interface WorkerOptions {
  world: World
  /** Subscribes to the notifications of enqueued work. */
  listen(onWork: () => void): Listener
  /** The maximum number of concurrent steps. */
  slots: number
  onTurn(turn: StepReport): void
}

export interface Worker {
  /** Stops leasing and waits for the running steps. */
  stop(): Promise<void>
}

const pollSeconds = 1 // a broken connection loses notifications
const renewMs = 1_000 // a quarter of a lease

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

  /** Runs one leasing statement at a time; a wake-up that arrives during it is handled right after it. */
  function wake(): void {
    if (stopped || running.size >= slots) return
    if (leasing) {
      wokenWhileLeasing = true
      return
    }
    leasing = true
    fill()
      .catch(() => pollSeconds) // the database is unavailable: the next poll retries
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
    // Each finished step wakes the worker, so while steps run the poll interval is enough.
    return leases.length > 0 ? pollSeconds : secondsToNext(world.db, pollSeconds)
  }

  const renewal = setInterval(() => {
    const tokens = [...running.keys()].map((lease) => lease.token)
    if (tokens.length > 0) renewLeases(world.db, tokens).catch(() => {})
  }, renewMs)

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
