// Backs up the state database. This is not a step of the background loop: it belongs to no resource, and the loop depends
// on the database that is dumped.
import type { StateDumpDriver } from '../drivers/state/driver.ts'

export interface StateBackup {
  /** Called after each turn of the loop; a new cluster or backup causes a dump soon. */
  note(turn: { kind: string; result: string }): void
  /** Causes a dump soon. */
  request(): void
  stop(): Promise<void>
}

export interface StateBackupOptions {
  dumps: StateDumpDriver
  onError(error: unknown): void
  schedule?: Partial<Schedule>
}

interface Schedule {
  checkMs: number
  /** The longest time between two dumps. */
  intervalMs: number
  /** The delay after an event, so that events in quick succession cause one dump. */
  delayMs: number
  /** The shortest time between two dumps. */
  minIntervalMs: number
}

const defaultSchedule: Schedule = { checkMs: 1_000, intervalMs: 3_600_000, delayMs: 2_000, minIntervalMs: 60_000 }

/** Several processes may run this at the same time: there is only one dump job, and storing its result twice is harmless. */
export function startStateBackup({ dumps, onError, schedule }: StateBackupOptions): StateBackup {
  const { checkMs, intervalMs, delayMs, minIntervalMs } = { ...defaultSchedule, ...schedule }
  let dueAt: number | undefined
  let startedAt = 0
  // True at first, because an earlier process may have left a dump.
  let isRunning = true
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> = Promise.resolve()

  const scheduleAt = (at: number) => {
    dueAt = Math.min(dueAt ?? at, at)
  }

  async function check(): Promise<void> {
    if (isRunning) return finishDump()
    if (dueAt === undefined || Date.now() < Math.max(dueAt, startedAt + minIntervalMs)) return
    dueAt = undefined
    startedAt = Date.now()
    isRunning = true
    await dumps.startDump()
  }

  async function finishDump(): Promise<void> {
    const seen = await dumps.inspectDump()
    if (seen.is === 'running') return
    if (seen.is === 'done') await dumps.keepDump()
    else if (seen.is === 'failed') await dumps.discardDump()
    isRunning = false
    const newest = await dumps.findNewest()
    scheduleAt((newest === undefined ? Date.now() : Number(newest / 1000n)) + intervalMs)
    if (seen.is === 'failed') throw new Error(`dump the state database: ${seen.reason}`)
  }

  function tick(): void {
    let pauseMs = checkMs
    running = check()
      .catch((error) => {
        scheduleAt(Date.now())
        pauseMs = minIntervalMs
        onError(error)
      })
      .then(() => {
        if (!stopped) timer = setTimeout(tick, pauseMs)
      })
  }
  tick()

  return {
    note({ kind, result }) {
      const isEvent = (kind === 'cluster' && result === 'ready') || (kind === 'backup' && result === 'completed')
      if (isEvent) scheduleAt(Date.now() + delayMs)
    },
    request: () => scheduleAt(Date.now() + delayMs),
    async stop() {
      stopped = true
      clearTimeout(timer)
      await running
    },
  }
}
