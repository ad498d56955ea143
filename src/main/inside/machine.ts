import type { FastifyInstance } from 'fastify'
import type { Home } from '../../drivers/host/home.ts'
import type { MachineDriver } from '../../drivers/machine/driver.ts'
import { listenInMachine } from '../../drivers/machine/inside.ts'
import { machineAddress, machineHeader } from '../../model/network.ts'
import type { World } from '../../reconcile/step.ts'
import { listRunningMachines, type MachineSlot } from '../../store/app/inside.ts'
import type { MachineFeed } from '../../store/app/machine-feed.ts'
import type { Db } from '../../store/db.ts'
import type { ControlPlane } from '../control-plane.ts'
import { openSockets } from './sockets.ts'

export interface MachineSockets {
  /** Wraps the driver so that a machine has its socket before it starts. */
  machines: MachineDriver
  /** Opens the sockets of all running machines and follows changes from then on. */
  start(server: FastifyInstance): Promise<void>
  close(): Promise<void>
}

type Parts = {
  db: Db
  log: Pick<ControlPlane['log'], 'warn'>
  home: Pick<Home, 'path' | 'tree' | 'log' | 'number'>
  world: Pick<World, 'machines'>
}

/** The sockets inside machines. A request over one is treated as coming from the private address of its machine. */
export function openMachineSockets({ home, db, world, log }: Parts, feed: MachineFeed): MachineSockets {
  let server: FastifyInstance | undefined
  let unsubscribe = () => {}
  const sockets = openSockets<MachineSlot>(
    (ids) => listRunningMachines(db, ids),
    ({ id, slot, networkNumber }) => {
      const address = machineAddress(home.number, networkNumber, slot)
      return listenInMachine(home, id, (request, response) => {
        request.headers[machineHeader] = address
        server?.routing(request, response)
      })
    },
  )

  /** Errors are only logged, since machines run without the socket; a reconnect of the feed refreshes all of them. */
  const refresh = (ids: string[] | null) =>
    sockets.refresh(ids).catch((err) => log.warn({ err }, 'opening the API sockets of machines failed'))

  return {
    machines: {
      ...world.machines,
      async startMachine(spec) {
        if (server && !sockets.has(spec.id)) await refresh([spec.id])
        return world.machines.startMachine(spec)
      },
      async removeMachine(id, slot) {
        await world.machines.removeMachine(id, slot)
        await sockets.remove(id) // its clients have exited
      },
    },
    async start(answering) {
      server = answering
      await refresh(null)
      unsubscribe = feed.subscribe((change) => {
        // Machines that another worker removed are noticed by the next full refresh.
        if (change === undefined) refresh(null)
        else if (!sockets.has(change.machineId)) refresh([change.machineId])
      })
    },
    async close() {
      unsubscribe()
      server = undefined
      await sockets.close()
    },
  }
}
