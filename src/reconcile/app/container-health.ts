// Decides about the health of containers by the results of their checks, and tells the supervisor of the containers.
import type { ContainerStatus } from '../../drivers/machine/driver.ts'
import type { Machine } from '../../model/app/machine.ts'
import type { NamedCheck } from '../../model/app/machine-check-list.ts'
import type { World } from '../step.ts'

/** Results in a row of each check, by its name. */
interface Counted {
  run: number
  passes: Map<string, number>
  failures: Map<string, number>
}

export interface ContainerHealth {
  /** `isPassing` is undefined for a failure that does not count, because the container has just been started. */
  record(named: NamedCheck, status: ContainerStatus, isPassing: boolean | undefined): void
}

/** Counts the results for one version of a machine. Another run of a container starts from nothing. */
export function containerHealth(world: World, machine: Machine, checks: NamedCheck[]): ContainerHealth {
  const counted = new Map<string, Counted>()

  function countOf({ name, run }: ContainerStatus): Counted {
    const known = counted.get(name)
    if (known?.run === run) return known
    const made = { run, passes: new Map(), failures: new Map() }
    counted.set(name, made)
    return made
  }

  function decide(own: NamedCheck[], { passes, failures }: Counted): ContainerStatus['health'] {
    if (own.some(({ name, container }) => (failures.get(name) ?? 0) >= container!.failureThreshold)) return 'unhealthy'
    return own.every(({ name, container }) => (passes.get(name) ?? 0) >= container!.successThreshold)
      ? 'healthy'
      : undefined
  }

  return {
    record({ name }, status, isPassing) {
      const count = countOf(status)
      count.passes.set(name, isPassing ? (count.passes.get(name) ?? 0) + 1 : 0)
      if (isPassing !== undefined) count.failures.set(name, isPassing ? 0 : (count.failures.get(name) ?? 0) + 1)
      const own = checks.filter(({ container }) => container?.name === status.name)
      const health = decide(own, count)
      // Compared with what the supervisor knows, so that a report that was lost is repeated.
      if (health && health !== status.health) world.machines.reportHealth(machine.id, status.name, status.run, health)
    },
  }
}

/** The container of a check, while it runs. */
export function findContainer(world: World, machine: Machine, { container }: NamedCheck): ContainerStatus | undefined {
  const process = world.machines.inspectMachine(machine.id, machine.instanceId)
  const found = process.is === 'up' ? process.containers?.find(({ name }) => name === container?.name) : undefined
  return found?.state === 'running' ? found : undefined
}
