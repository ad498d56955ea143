// Runs the health checks of machines. They are not steps of the loop: they run every few seconds, and nothing is written
// while their result stays the same.
import type { Machine } from '../../model/app/machine.ts'
import { listChecks, type NamedCheck } from '../../model/app/machine-check-list.ts'
import { goDurationMs } from '../../model/duration.ts'
import { listMachinesToCheck } from '../../store/app/machine.ts'
import type { MachineFeed } from '../../store/app/machine-feed.ts'
import { setCheck } from '../../store/app/machine-progress.ts'
import { holdLock } from '../../store/listen.ts'
import type { World } from '../step.ts'
import { type ContainerHealth, containerHealth, findContainer } from './container-health.ts'
import { type CheckOutcome, runCheck } from './machine-check-run.ts'

export interface Checker {
  stop(): Promise<void>
}

const defaultIntervalMs = 15_000
const minIntervalMs = 1_000
const defaultGraceMs = 10_000

/** A client may wait for a check to pass for the first time, so it is repeated often at first and less often with time. */
const firstPause = { minMs: 100, shareOfAge: 0.1 }

/** The feed reports changes; this is the fallback. */
const reloadMs = 30_000

/** One started machine. Its timers hold the next run of each check. */
interface Watched {
  key: string
  machine: Machine
  timers: NodeJS.Timeout[]
}

/** Checks machines in this process if it holds the lock; of all processes on one state database only one does. */
export function startChecker(world: World, lockConfig: Parameters<typeof holdLock>[0], feed: MachineFeed): Checker {
  const schedule = checkSchedule(world)
  let stopped = false
  let reloading: Promise<void> | undefined
  let reloadAgain = false

  async function reload(): Promise<void> {
    const machines = lock.held() ? await listMachinesToCheck(world.db) : []
    if (!stopped) schedule.update(machines)
  }

  function requestReload(): void {
    if (stopped) return
    if (reloading) {
      reloadAgain = true
      return
    }
    reloading = reload()
      .catch(() => {}) // the database is unavailable: the next reload repeats it
      .then(() => {
        reloading = undefined
        if (!reloadAgain) return
        reloadAgain = false
        requestReload()
      })
  }

  const lock = holdLock(lockConfig, 'machine checks', () => requestReload())
  const unsubscribe = feed.subscribe(requestReload)
  const timer = setInterval(requestReload, reloadMs)
  return {
    async stop() {
      stopped = true
      schedule.update([])
      unsubscribe()
      clearInterval(timer)
      await reloading
      await lock.close()
    },
  }
}

/** Keeps the checks of a set of machines running. */
function checkSchedule(world: World): { update(machines: Machine[]): void } {
  const watched = new Map<string, Watched>()
  const lastStatus = new Map<string, string>()

  function drop(entry: Watched): void {
    for (const timer of entry.timers) clearTimeout(timer)
    watched.delete(entry.key)
    for (const name of lastStatus.keys()) if (name.startsWith(`${entry.key} `)) lastStatus.delete(name)
  }

  function begin(key: string, machine: Machine): void {
    const entry: Watched = { key, machine, timers: [] }
    watched.set(key, entry)
    const checks = listChecks(machine.config)
    const health = containerHealth(world, machine, checks)
    checks.forEach((check, index) => {
      if (check.container) repeatInContainer(entry, check, index, health)
      else repeat(entry, check, index)
    })
  }

  /** Like `repeat`, from the last start of the container. Failures count only as often as the interval says. */
  function repeatInContainer(entry: Watched, named: NamedCheck, index: number, health: ContainerHealth): void {
    const intervalMs = Math.max(goDurationMs(named.check.interval) ?? defaultIntervalMs, minIntervalMs)
    const graceMs = goDurationMs(named.check.grace_period) ?? defaultGraceMs
    /** Returns the pause before the next check. */
    const look = async (): Promise<number> => {
      const before = findContainer(world, entry.machine, named)
      const outcome = before && (await runCheck(world, entry.machine, named))
      const status = findContainer(world, entry.machine, named)
      if (status === undefined) return Math.min(intervalMs, firstPauseMs(0))
      const ageMs = Date.now() - status.since
      const isPassing = outcome?.status === 'passing'
      const isEarly = !isPassing && ageMs < graceMs && status.health === undefined
      if (outcome && status.run === before.run && watched.get(entry.key) === entry) {
        health.record(named, status, isEarly ? undefined : isPassing)
        if (!isEarly) await record(entry, named, outcome)
      }
      return isEarly ? Math.min(intervalMs, firstPauseMs(ageMs)) : intervalMs
    }
    const run = async () => {
      // What cannot be read now is looked at again.
      const pauseMs = await look().catch(() => intervalMs)
      if (watched.get(entry.key) === entry) entry.timers[index] = setTimeout(() => void run(), pauseMs)
    }
    void run()
  }

  function repeat(entry: Watched, named: NamedCheck, index: number): void {
    const intervalMs = Math.max(goDurationMs(named.check.interval) ?? defaultIntervalMs, minIntervalMs)
    const graceMs = goDurationMs(named.check.grace_period) ?? defaultGraceMs
    const startedAt = performance.now()
    let hasPassed = false
    const run = async () => {
      const outcome = await runCheck(world, entry.machine, named)
      if (watched.get(entry.key) !== entry) return
      const ageMs = performance.now() - startedAt
      hasPassed ||= outcome.status === 'passing'
      // Failures within the grace period are not reported: the program may still be starting.
      if (hasPassed || ageMs >= graceMs) await record(entry, named, outcome)
      const pauseMs = hasPassed ? intervalMs : Math.min(intervalMs, firstPauseMs(ageMs))
      entry.timers[index] = setTimeout(() => void run(), pauseMs)
    }
    void run()
  }

  async function record({ key, machine }: Watched, { name }: NamedCheck, outcome: CheckOutcome): Promise<void> {
    const checkKey = `${key} ${name}`
    if (lastStatus.get(checkKey) === outcome.status) return
    lastStatus.set(checkKey, outcome.status)
    // If this result cannot be stored, the next one is.
    await setCheck(world.db, machine, name, outcome).catch(() => lastStatus.delete(checkKey))
  }

  return {
    update(machines) {
      const current = new Map(machines.map((machine) => [keyOf(machine), machine]))
      for (const entry of [...watched.values()]) if (!current.has(entry.key)) drop(entry)
      for (const [key, machine] of current) if (!watched.has(key)) begin(key, machine)
    },
  }
}

/** Changes whenever the checks of a machine have to start over. */
function keyOf({ id, instanceId, stateSince }: Machine): string {
  return `${id} ${instanceId} ${stateSince}`
}

export function firstPauseMs(ageMs: number): number {
  return Math.max(firstPause.minMs, ageMs * firstPause.shareOfAge)
}
