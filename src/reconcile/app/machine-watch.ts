// What happens to machines without anybody asking: their programs end, their times come, their traces grow old.
import { listUsedImages } from '../../store/app/machine.ts'
import { trimMachineEvents } from '../../store/app/machine-event.ts'
import { forgetDestroyed } from '../../store/app/machine-progress.ts'
import { startScheduled } from '../../store/app/machine-schedule.ts'
import { listSandboxImages } from '../../store/sandbox/sandbox.ts'
import type { World } from '../step.ts'
import { wake } from './machine-image.ts'

export interface MachineWatch {
  stop(): Promise<void>
}

const tickMs = 10_000
const tidySeconds = 300
const collectSeconds = 3_600

/** For GET, by those who wait for the end. */
const shownSeconds = 3_600

const keptEvents = 100

/** What was pulled a moment ago belongs to a machine that has not noted it yet. */
const freshImageMs = 3_600_000

export function watchMachines(world: World, onError: (error: unknown) => void): MachineWatch {
  const forget = world.machines.onChange((id) => wake({ id }, world))
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
  }, tickMs)
  return {
    async stop() {
      clearInterval(timer)
      forget()
      await running
    },
  }
}

async function tick(world: World, nth: number): Promise<void> {
  await world.db.transaction((tx) => startScheduled(tx))
  if (nth % (tidySeconds / 10) === 0) await tidyMachines(world)
  if (nth % (collectSeconds / 10) === collectSeconds / 10 - 1) await collectImages(world)
}

export async function tidyMachines({ db }: Pick<World, 'db'>): Promise<void> {
  await forgetDestroyed(db, shownSeconds)
  await trimMachineEvents(db, keptEvents)
}

export async function collectImages({ db, images }: Pick<World, 'db' | 'images'>, now = Date.now()): Promise<void> {
  const fresh = (await images.listImages()).filter(({ pulledAt }) => now - pulledAt < freshImageMs)
  const named = [...(await listUsedImages(db)), ...(await listSandboxImages(db))]
  const used = new Set([...named, ...fresh.map(({ digest }) => digest)])
  await images.collectImages(used)
}
