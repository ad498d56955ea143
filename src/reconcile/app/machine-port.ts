import { isIPv4 } from 'node:net'
import type { ListenSocket } from '../../drivers/machine/driver.ts'
import type { Machine } from '../../model/app/machine.ts'
import type { MachineService } from '../../model/app/machine-config.ts'
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

// A tenant decides about both numbers.
const maxServices = 20
const maxAddresses = 3

/** Describes the services whose port the edge, which connects over IPv4, cannot reach. */
export function describeSilentServices(services: MachineService[], listening: ListenSocket[]): string[] {
  const ports = new Map(
    services
      .slice(0, maxServices)
      .map(({ protocol = 'tcp', internal_port }) => [`${protocol} ${internal_port}`, protocol]),
  )
  return [...ports].flatMap(([key, protocol]) => {
    const port = Number(key.split(' ')[1])
    const sockets = listening.filter(({ proto, address }) => proto.startsWith(protocol) && portOf(address) === port)
    if (sockets.some(({ address }) => isReachable(address))) return []
    const elsewhere = sockets
      .slice(0, maxAddresses)
      .map(({ address }) => address)
      .join(', ')
    const what = elsewhere
      ? `the program listens on ${elsewhere}, and the edge connects over IPv4 only`
      : `nothing listens on ${protocol} port ${port}, the internal_port of a service`
    return [`${what}; requests to the service fail`]
  })
}

function portOf(address: string): number {
  return Number(address.slice(address.lastIndexOf(':') + 1))
}

/** Loopback addresses are reachable too, and a socket on all IPv6 addresses usually takes IPv4 as well. */
function isReachable(address: string): boolean {
  const host = address.slice(0, address.lastIndexOf(':'))
  return host === '[::]' || isIPv4(host)
}
