import type { FastifyInstance } from 'fastify'
import type { Home } from '../../drivers/host/home.ts'
import type { MachineDriver } from '../../drivers/machine/driver.ts'
import { listenInMachine } from '../../drivers/machine/inside.ts'
import { machineAddress, machineHeader } from '../../model/network.ts'
import type { World } from '../../reconcile/step.ts'
import { listRunningMachines, type MachinePlace } from '../../store/app/inside.ts'
import type { MachineFeed } from '../../store/app/machine-feed.ts'
import type { Db } from '../../store/db.ts'
import type { ControlPlane } from '../control-plane.ts'
import { openSockets } from '../sockets.ts'

export interface MachineInside {
  /** A machine that is started through these has its socket before it runs. */
  machines: MachineDriver
  /** Listens for every machine that runs, from now on. */
  start(server: FastifyInstance): Promise<void>
  close(): Promise<void>
}

type Ground = {
  db: Db
  log: Pick<ControlPlane['log'], 'warn'>
  home: Pick<Home, 'path' | 'tree' | 'log' | 'number'>
  world: Pick<World, 'machines'>
}

/** The sockets inside machines. What comes through one is answered as if it came from the address of its machine. */
export function openMachineInside({ home, db, world, log }: Ground, feed: MachineFeed): MachineInside {
  let server: FastifyInstance | undefined
  let unsubscribe = () => {}
  const sockets = openSockets<MachinePlace>(
    (ids) => listRunningMachines(db, ids),
    ({ id, slot, networkNumber }) => {
      const address = machineAddress(home.number, networkNumber, slot)
      return listenInMachine(home, id, (request, response) => {
        request.headers[machineHeader] = address
        server?.routing(request, response)
      })
    },
  )

  /** Machines run without as well. A connection that was lost is made again, and then everything is looked at. */
  const look = (ids: string[] | null) =>
    sockets.look(ids).catch((err) => log.warn({ err }, 'could not open the sockets inside machines'))

  return {
    machines: {
      ...world.machines,
      async startMachine(spec) {
        if (server && !sockets.has(spec.id)) await look([spec.id])
        return world.machines.startMachine(spec)
      },
      async removeMachine(id, slot) {
        await world.machines.removeMachine(id, slot)
        await sockets.remove(id) // whoever was connected is gone
      },
    },
    async start(answering) {
      server = answering
      await look(null)
      unsubscribe = feed.subscribe((change) => {
        // Those that another worker has removed are noticed with the next look at all.
        if (change === undefined) look(null)
        else if (!sockets.has(change.machineId)) look([change.machineId])
      })
    },
    async close() {
      unsubscribe()
      server = undefined
      await sockets.close()
    },
  }
}
