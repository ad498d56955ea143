import type { CheckResult, MachineState } from '../../model/app/machine.ts'
import { listChecks } from '../../model/app/machine-check-list.ts'
import type { MachineService } from '../../model/app/machine-config.ts'
import type { MachineRouteRow } from '../../store/app/route.ts'
import { type BoxNetwork, boxEndpoint, type Endpoint, type WorkerShare } from '../types.ts'

/** One service of one version of a machine, with the load and failures that this worker has seen. */
export class Target implements Endpoint {
  readonly key: string
  readonly machineId: string
  readonly address: string | null
  readonly localAddress: string | undefined
  readonly port: number
  region = ''
  state: MachineState = 'stopped'
  /** The machine is started, not cordoned, and passes its checks. */
  isOpen = false
  /** The machine is starting, or started with checks that have neither passed nor failed yet. */
  isRising = false
  isCordoned = false
  autostarts = false
  softLimit = 0
  hardLimit = 0
  /** The hard limit is too small to divide between workers, so each request needs a permit from the parent process. */
  needsPermit = false
  /** No permit was available; none is requested before this time unless the parent reports a free one. */
  fullUntil = 0
  /** Requests in progress. */
  load = 0
  /** The highest load since the last report. */
  peak = 0
  /** Consecutive failed connections. */
  failures = 0
  /** No connection is tried before this time. */
  backoffUntil = 0

  constructor(key: string, machineId: string, endpoint: Pick<Endpoint, 'address' | 'localAddress'>, port: number) {
    this.key = key
    this.machineId = machineId
    this.address = endpoint.address
    this.localAddress = endpoint.localAddress
    this.port = port
  }
}

const defaultSoftLimit = 20
/** A hard limit that gives each worker less than this is counted exactly, which costs a message to the parent. */
const minShare = 4
const startingStates = new Set(['starting', 'restarting'])
/** UDP traffic of an app is handled by one worker, so limits are not divided. */
const singleWorker: WorkerShare = { index: 0, count: 1 }

function targetKey(machine: MachineRouteRow, service: MachineService, address: string | null): string {
  const suffix = service.protocol === 'udp' ? '/udp' : ''
  return `${machine.id} ${machine.instanceId} ${address}:${service.internal_port}${suffix}`
}

/** Updates the target of a service from its row. `find` returns the target that is known by a key already. */
export function updateTarget(
  machine: MachineRouteRow,
  service: MachineService,
  { boxes, worker }: { boxes: BoxNetwork; worker: WorkerShare },
  find: (key: string) => Target | undefined,
): Target {
  const endpoint = boxEndpoint(boxes, machine.slot)
  const key = targetKey(machine, service, endpoint.address)
  const target = find(key) ?? new Target(key, machine.id, endpoint, service.internal_port)
  const wasOpen = target.isOpen
  const health = findHealth(machine)
  target.region = machine.region
  target.state = machine.state
  target.isCordoned = machine.cordoned
  target.isOpen = machine.state === 'started' && !machine.cordoned && health === 'passing'
  target.isRising = startingStates.has(machine.state) || (machine.state === 'started' && health === 'warning')
  target.autostarts = service.autostart ?? machine.autostarts
  setLimits(target, service, service.protocol === 'udp' ? singleWorker : worker)
  if (target.isOpen && !wasOpen) target.backoffUntil = 0
  return target
}

function setLimits(target: Target, { concurrency }: MachineService, worker: WorkerShare): void {
  const hard = concurrency?.hard_limit || Number.POSITIVE_INFINITY
  const soft = Math.min(concurrency?.soft_limit || (Number.isFinite(hard) ? hard : defaultSoftLimit), hard)
  target.softLimit = shareOf(soft, worker)
  target.needsPermit = worker.count > 1 && hard < worker.count * minShare
  target.hardLimit = target.needsPermit ? hard : shareOf(hard, worker)
}

/** The worst status of the checks that gate traffic; a check that has not run yet counts as a warning. */
function findHealth({ services, checks, statuses }: MachineRouteRow): CheckResult['status'] {
  const gates = listChecks({ services, ...(checks && { checks }) }).filter(({ gatesTraffic }) => gatesTraffic)
  const found = gates.map(({ name }) => statuses?.[name] ?? 'warning')
  return (['critical', 'warning'] as const).find((status) => found.includes(status)) ?? 'passing'
}

/** At least 1, because with a limit of 0 the worker could not use the machine at all. */
function shareOf(limit: number, { index, count }: WorkerShare): number {
  if (!Number.isFinite(limit)) return limit
  return Math.max(1, Math.floor(limit / count) + (index < limit % count ? 1 : 0))
}
