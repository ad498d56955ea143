import { appStates } from '../model/app/app.ts'
import { machineStates } from '../model/app/machine.ts'
import { snapshotStates, volumeStates } from '../model/app/volume.ts'
import { describeError } from '../model/errors.ts'
import { backupStates } from '../model/postgres/backup.ts'
import { clusterStates } from '../model/postgres/cluster.ts'
import { drillStates } from '../model/postgres/drill.ts'
import { importStates } from '../model/postgres/import.ts'
import { sandboxStates } from '../model/sandbox/sandbox.ts'
import { isWorking, type StateTable } from '../model/states.ts'
import { type Micros, nowMicros } from '../model/time.ts'
import { loadApp } from '../store/app/app.ts'
import { loadMachine } from '../store/app/machine.ts'
import { loadSnapshot, loadVolume } from '../store/app/volume.ts'
import { commitWithoutDisk, type Query, type Tx } from '../store/db.ts'
import { loadBackup } from '../store/postgres/backup.ts'
import { loadCluster } from '../store/postgres/cluster.ts'
import { loadDrill } from '../store/postgres/drill.ts'
import { loadImport } from '../store/postgres/import.ts'
import { loadSandbox } from '../store/sandbox/sandbox.ts'
import { type Kind, lockState, transition } from '../store/transition.ts'
import { holdsLease, type Lease, leaseDue, release, releaseAfterError, removeWork } from '../store/work.ts'
import { appSteps } from './app/app.ts'
import { machineSteps } from './app/machine.ts'
import { snapshotSteps, volumeSteps } from './app/volume.ts'
import { backupSteps } from './postgres/backup.ts'
import { clusterSteps } from './postgres/cluster.ts'
import { drillSteps } from './postgres/drill.ts'
import { importSteps } from './postgres/import.ts'
import { sandboxSteps } from './sandbox/sandbox.ts'
import { advance, type StepResult, type World } from './step.ts'

interface Row {
  id: string
  state: string
  stateSince: Micros
  /** The last progress within a long state, from which its deadline counts. */
  progressAt?: Micros | null
}

interface KindOfWork {
  states: StateTable
  load(db: Query, id: string): Promise<Row | undefined>
  steps: Record<string, (row: never, world: World) => Promise<StepResult>>
}

const kinds: Record<Kind, KindOfWork> = {
  app: { states: appStates, load: loadApp, steps: appSteps },
  backup: { states: backupStates, load: loadBackup, steps: backupSteps },
  cluster: { states: clusterStates, load: loadCluster, steps: clusterSteps },
  drill: { states: drillStates, load: loadDrill, steps: drillSteps },
  import: { states: importStates, load: loadImport, steps: importSteps },
  machine: { states: machineStates, load: loadMachine, steps: machineSteps },
  sandbox: { states: sandboxStates, load: loadSandbox, steps: sandboxSteps },
  snapshot: { states: snapshotStates, load: loadSnapshot, steps: snapshotSteps },
  volume: { states: volumeStates, load: loadVolume, steps: volumeSteps },
}

/** The result of one step, for the log and the metrics. */
export interface StepReport {
  kind: string
  resourceId: string
  result: string
  seconds: number
  error?: unknown
}

/** Leases the most overdue resource, runs its step and records the result. Returns undefined when none is due. */
export async function runNextStep(world: World): Promise<StepReport | undefined> {
  const [lease] = await leaseDue(world.db, 1)
  return lease && runLease(world, lease)
}

const minuteMs = 60_000

/**
 * Within a state that has a deadline, a step is retried at least this often. Otherwise the state could outlast its deadline
 * by minutes, and a short disturbance could delay it by as much.
 */
const maxRetrySeconds = { withDeadline: 20, withoutDeadline: 300 }

/**
 * The time limit of a step in a state without a deadline. Drivers have limits of their own for most of what they do; this
 * one frees what waits for an answer that never comes.
 */
const longestStepMinutes = 24 * 60

/**
 * Runs the step of a leased resource once. It never throws: an error is stored in the work row and retried later. A step that
 * does not end is abandoned: whatever it returns later does not count, because its lease is over.
 */
export async function runLease(world: World, lease: Lease, unitMs = minuteMs): Promise<StepReport> {
  const started = performance.now()
  const report = (result: string) => {
    return { kind: lease.kind, resourceId: lease.resourceId, result, seconds: (performance.now() - started) / 1000 }
  }
  const kind = kinds[lease.kind as Kind]
  let hasDeadline = false
  try {
    const row = await kind.load(world.db, lease.resourceId)
    const deadline = row && kind.states[row.state]?.deadlineMinutes
    hasDeadline = deadline !== undefined
    // Twice, because a step may report progress, from which the deadline then counts again.
    const limitMs = (deadline ? 2 * deadline : longestStepMinutes) * unitMs
    return report(await withTimeLimit(processLease(world, lease, kind, row), limitMs, row?.state))
  } catch (error) {
    const retrySeconds = hasDeadline ? maxRetrySeconds.withDeadline : maxRetrySeconds.withoutDeadline
    // If this fails as well, the lease expires.
    await releaseAfterError(world.db, lease, describeError(error), retrySeconds).catch(() => {})
    return { ...report('error'), error }
  }
}

async function withTimeLimit<T>(work: Promise<T>, limitMs: number, state = ''): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>()
  const reason = `its step while ${state} did not end within ${Math.round(limitMs / minuteMs)} minutes`
  const timer = setTimeout(() => reject(new Error(reason)), limitMs)
  try {
    return await Promise.race([work, late])
  } finally {
    clearTimeout(timer)
  }
}

async function processLease(world: World, lease: Lease, kind: KindOfWork, row: Row | undefined): Promise<string> {
  const result = row && (await runStep(kind, row, lease, world))
  await world.db.transaction((tx) => record(tx, kind, lease, row, result))
  if (!result) return 'rest'
  return 'wait' in result ? 'wait' : result.outcome
}

/** Returns undefined when the state of the resource has no step. */
async function runStep(kind: KindOfWork, row: Row, lease: Lease, world: World): Promise<StepResult | undefined> {
  const minutes = kind.states[row.state]?.deadlineMinutes
  const since = row.progressAt ?? row.stateSince
  if (minutes && nowMicros() - since > BigInt(minutes) * 60_000_000n) {
    const last = lease.lastError ?? lease.note
    return advance('failed', `no progress in ${minutes} minutes while ${row.state}${last && `: ${last}`}`)
  }
  return kind.steps[row.state]?.(row as never, world)
}

/** Discards the result when the lease was lost or the state has changed since the step began. */
async function record(tx: Tx, kind: KindOfWork, lease: Lease, row?: Row, result?: StepResult): Promise<void> {
  // A plain wait need not be durable: after a crash the step just runs again.
  const isLossTolerable = result !== undefined && 'wait' in result && !result.save
  const [state] = await Promise.all([
    lockState(tx, lease.kind as Kind, lease.resourceId),
    isLossTolerable && commitWithoutDisk(tx),
  ])
  if (!(await holdsLease(tx, lease))) return
  if (!result) return removeWork(tx, lease)
  if (state === row?.state) {
    await result.save?.(tx)
    if ('outcome' in result) {
      const to = await transition(tx, lease.kind as Kind, kind.states, lease.resourceId, result.outcome, result.note)
      if (!isWorking(kind.states, to)) return removeWork(tx, lease)
    }
  }
  const delaySeconds = 'wait' in result ? result.wait : 0
  await release(tx, lease, delaySeconds, result.note)
}
