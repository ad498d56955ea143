import type { Machine } from '../../model/app/machine.ts'
import { describeSilentServices } from '../../model/app/machine-warning.ts'
import { insertMachineEvent } from '../../store/app/machine-event.ts'
import { setWarnings } from '../../store/app/machine-progress.ts'
import type { Tx } from '../../store/db.ts'
import type { World } from '../step.ts'

/** A program that does not listen by then has probably been told another port. */
const startMs = 5_000
const retrySeconds = 0.5

interface PortLook {
  /** Set while the program may still be starting. */
  retrySeconds?: number
  save?: (tx: Tx) => Promise<void>
}

/**
 * Looks whether the ports of its services are open in a running machine. What is found the first time after a start becomes
 * an event and a line of its log, later only its warnings change.
 */
export function lookAtPorts(machine: Machine, world: World, since: number): PortLook {
  const services = machine.config.services ?? []
  const listening = services.length > 0 ? world.machines.listListening(machine.id) : undefined
  if (!listening) return {}
  const found = describeSilentServices(services, listening)
  if (found.length > 0 && Date.now() - since < startMs) return { retrySeconds }
  if (machine.warnings?.join() === found.join()) return {}
  const isFirst = machine.warnings === null
  if (isFirst) for (const text of found) world.machines.writeLog(machine.id, `warning: ${text}`)
  return {
    async save(tx) {
      await setWarnings(tx, machine.id, found)
      if (!isFirst) return
      for (const error of found)
        await insertMachineEvent(tx, machine.id, {
          type: 'warning',
          status: 'started',
          source: 'flyd',
          request: { error },
        })
    },
  }
}
