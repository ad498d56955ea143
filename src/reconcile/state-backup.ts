// Backs up the state database itself. It is no step of the loop: there is no resource to look at, and the loop depends on
// the database that is dumped.
import type { StateDumpDriver } from '../drivers/state/dump.ts'

export interface StateBackup {
  /** Called with each turn of the loop: what it brought into being is worth a dump soon. */
  note(turn: { kind: string; result: string }): void
  stop(): Promise<void>
}

export interface StateBackupOptions {
  dumps: StateDumpDriver
  onError(error: unknown): void
  pace?: Partial<Pace>
}

export interface Pace {
  tickMillis: number
  /** At least one dump in this time. */
  intervalMillis: number
  /** How soon after something worth it, so that what comes together is dumped together. */
  soonMillis: number
  /** And how long after the dump before, however much happens. */
  restMillis: number
}

const usualPace: Pace = { tickMillis: 1_000, intervalMillis: 3_600_000, soonMillis: 2_000, restMillis: 60_000 }

/** Several processes may do this at once: the dump is one job, and keeping it twice is harmless. */
export function startStateBackup({ dumps, onError, pace }: StateBackupOptions): StateBackup {
  const { tickMillis, intervalMillis, soonMillis, restMillis } = { ...usualPace, ...pace }
  let wantedAt: number | undefined
  let startedAt = 0
  // Also at first: a process before this one may have left its dump.
  let isRunning = true
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> = Promise.resolve()

  const want = (at: number) => {
    wantedAt = Math.min(wantedAt ?? at, at)
  }

  async function look(): Promise<void> {
    if (isRunning) return settle()
    if (wantedAt === undefined || Date.now() < Math.max(wantedAt, startedAt + restMillis)) return
    wantedAt = undefined
    startedAt = Date.now()
    isRunning = true
    await dumps.startDump()
  }

  async function settle(): Promise<void> {
    const seen = await dumps.inspectDump()
    if (seen.is === 'running') return
    if (seen.is === 'done') await dumps.keepDump()
    else if (seen.is === 'failed') await dumps.discardDump()
    isRunning = false
    const newest = await dumps.findNewest()
    want((newest === undefined ? Date.now() : Number(newest / 1000n)) + intervalMillis)
    if (seen.is === 'failed') throw new Error(`dump the state database: ${seen.reason}`)
  }

  function tick(): void {
    let pauseMillis = tickMillis
    running = look()
      .catch((error) => {
        want(Date.now())
        pauseMillis = restMillis
        onError(error)
      })
      .then(() => {
        if (!stopped) timer = setTimeout(tick, pauseMillis)
      })
  }
  tick()

  return {
    note({ kind, result }) {
      const isWorthIt = (kind === 'cluster' && result === 'ready') || (kind === 'backup' && result === 'completed')
      if (isWorthIt) want(Date.now() + soonMillis)
    },
    async stop() {
      stopped = true
      clearTimeout(timer)
      await running
    },
  }
}
