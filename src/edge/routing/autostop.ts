// Stops machines that nobody needs, one for each app and region at a look. Workers say how busy machines were; one of
// them decides.
import type { MachineService } from '../../model/app/machine-config.ts'
import {
  listRunningMachines,
  putLoads,
  type RunningMachine,
  stopIdleMachine,
  whileAlone,
} from '../../store/app/machine-load.ts'
import type { Database } from '../../store/db.ts'
import type { Balance } from './balance.ts'

export interface AutostopOptions {
  db: Database
  balance: Pick<Balance, 'takePeaks'>
  worker: { index: number; count: number }
  lookSeconds: number
  onError(error: unknown): void
}

/** Loads are told more often than they are looked at, so that the newest of each worker is there. */
const reportsPerLook = 3

export function startAutostop(options: AutostopOptions): { close(): void } {
  const { db, balance, worker, lookSeconds, onError } = options
  let reports = 0
  let isBusy = false

  async function report(): Promise<void> {
    await putLoads(db, String(worker.index), balance.takePeaks())
    reports += 1
    if (worker.index === 0 && reports % reportsPerLook === 0) await stopIdle(db, lookSeconds)
  }

  const timer = setInterval(
    () => {
      if (isBusy) return
      isBusy = true
      report()
        .catch(onError)
        .finally(() => {
          isBusy = false
        })
    },
    (lookSeconds * 1000) / reportsPerLook,
  )
  return { close: () => clearInterval(timer) }
}

async function stopIdle(db: Database, lookSeconds: number): Promise<void> {
  await whileAlone(db, async (tx) => {
    const machines = await listRunningMachines(tx, lookSeconds)
    for (const group of Map.groupBy(machines, ({ appId, region }) => `${appId} ${region}`).values()) {
      const spare = chooseSpare(group)
      if (spare) await stopIdleMachine(tx, spare.id, spare.how)
    }
  })
}

/** The one to stop, of the running machines of an app in a region. */
export function chooseSpare(group: RunningMachine[]): { id: string; how: 'stop' | 'suspend' } | undefined {
  const fewest = Math.max(0, ...group.flatMap(({ services }) => services.map((each) => each.min_machines_running ?? 0)))
  if (group.length <= fewest) return undefined
  const busy = group.filter((machine) => machine.load > softLimitOf(machine)).length
  const spare = group.filter(({ isSettled }) => isSettled).toSorted((a, b) => a.load - b.load)[0]
  if (!spare) return undefined
  const isWanted = group.length === 1 ? spare.load > 0 : group.length - (busy + 1) < 1
  return isWanted ? undefined : { id: spare.id, how: howOf(spare) }
}

const defaultSoftLimit = 20

function softLimitOf({ services }: RunningMachine): number {
  const limits = services.map(
    ({ concurrency }) => concurrency?.soft_limit || concurrency?.hard_limit || defaultSoftLimit,
  )
  return Math.min(...limits)
}

function howOf({ services }: RunningMachine): 'stop' | 'suspend' {
  const isSuspended = ({ autostop }: MachineService) => autostop === 'suspend'
  return services.some(isSuspended) ? 'suspend' : 'stop'
}
