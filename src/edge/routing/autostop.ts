// Stops idle machines, at most one per app and region in each round. Every worker reports the load of its machines to the
// database, and the first worker decides.
import type { MachineService } from '../../model/app/machine-config.ts'
import { listRunningMachines, putLoads, type RunningMachine } from '../../store/app/machine-load.ts'
import type { Database } from '../../store/db.ts'
import { requestFromEdge } from '../../store/edge-request.ts'
import type { WorkerShare } from '../types.ts'

export interface AutostopOptions {
  db: Database
  /** Returns the highest load of each machine since the last call. */
  takePeaks(): Map<string, number>
  worker: WorkerShare
  intervalSeconds: number
  onError(error: unknown): void
}

/** Loads are reported more often than they are evaluated, so that each evaluation sees a recent report of every worker. */
const reportsPerRound = 3

export function startAutostop(options: AutostopOptions): { close(): void } {
  const { db, takePeaks, worker, intervalSeconds, onError } = options
  let reports = 0
  let isBusy = false

  async function report(): Promise<void> {
    await putLoads(db, worker.index, takePeaks())
    reports += 1
    if (worker.index === 0 && reports % reportsPerRound === 0) await stopIdle(db, intervalSeconds)
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
    (intervalSeconds * 1000) / reportsPerRound,
  )
  return { close: () => clearInterval(timer) }
}

async function stopIdle(db: Database, intervalSeconds: number): Promise<void> {
  const machines = await listRunningMachines(db, intervalSeconds)
  for (const group of Map.groupBy(machines, ({ appId, region }) => `${appId} ${region}`).values()) {
    const idle = chooseIdleMachine(group)
    if (idle) await requestFromEdge(db, idle.how === 'suspend' ? 'suspend_machine' : 'stop_machine', idle.id)
  }
}

/** Chooses which of the running machines of an app in a region to stop, if any. */
export function chooseIdleMachine(group: RunningMachine[]): { id: string; how: 'stop' | 'suspend' } | undefined {
  const minRunning = Math.max(
    0,
    ...group.flatMap(({ services }) => services.map((each) => each.min_machines_running ?? 0)),
  )
  if (group.length <= minRunning) return undefined
  const busyCount = group.filter((machine) => machine.load > softLimitOf(machine)).length
  const idlest = group.filter(({ isSettled }) => isSettled).toSorted((a, b) => a.load - b.load)[0]
  if (!idlest) return undefined
  const isNeeded = group.length === 1 ? idlest.load > 0 : group.length - (busyCount + 1) < 1
  return isNeeded ? undefined : { id: idlest.id, how: autostopMode(idlest) }
}

const defaultSoftLimit = 20

function softLimitOf({ services }: RunningMachine): number {
  const limits = services.map(
    ({ concurrency }) => concurrency?.soft_limit || concurrency?.hard_limit || defaultSoftLimit,
  )
  return Math.min(...limits)
}

function autostopMode({ services }: RunningMachine): 'stop' | 'suspend' {
  const suspends = ({ autostop }: MachineService) => autostop === 'suspend'
  return services.some(suspends) ? 'suspend' : 'stop'
}
