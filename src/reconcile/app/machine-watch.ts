// Periodic work on machines: wakes the loop when programs exit, starts scheduled machines and removes old records.

import { trimReleasedIps } from '../../store/app/ip.ts'
import { trimMachineEvents } from '../../store/app/machine-event.ts'
import { deleteDestroyed } from '../../store/app/machine-progress.ts'
import { startScheduled } from '../../store/app/machine-schedule.ts'
import type { World } from '../step.ts'
import { collectImages } from './image-collection.ts'
import { wakeMachine } from './machine-image.ts'

export interface MachineWatch {
  stop(): Promise<void>
}

const tickSeconds = 10
const tidySeconds = 300
const collectSeconds = 3_600

/** Destroyed machines stay visible for clients that poll until they are gone. */
const destroyedSeconds = 3_600

const maxEventsPerMachine = 100

/** More than the default IPv4 pool has. */
const maxReleasedIps = 100_000

export function watchMachines(world: World, onError: (error: unknown) => void): MachineWatch {
  const unsubscribe = world.machines.onChange((id) => wakeMachine({ id }, world))
  let ticks = 0
  let running: Promise<void> = Promise.resolve()
  let isRunning = false
  const timer = setInterval(() => {
    if (isRunning) return
    isRunning = true
    running = tick(world, ticks++)
      .catch(onError)
      .finally(() => {
        isRunning = false
      })
  }, tickSeconds * 1000)
  return {
    async stop() {
      clearInterval(timer)
      unsubscribe()
      await running
    },
  }
}

async function tick(world: World, count: number): Promise<void> {
  const ticksPerCollection = collectSeconds / tickSeconds
  await world.db.transaction((tx) => startScheduled(tx))
  await world.machines.trimKeptLogs()
  if (count % (tidySeconds / tickSeconds) === 0) await tidyMachines(world)
  if (count % ticksPerCollection === ticksPerCollection - 1) await collectImages(world)
}

export async function tidyMachines({ db }: Pick<World, 'db'>): Promise<void> {
  await deleteDestroyed(db, destroyedSeconds)
  await trimMachineEvents(db, maxEventsPerMachine)
  await trimReleasedIps(db, maxReleasedIps)
}
