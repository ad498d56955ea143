import type { FastifyInstance } from 'fastify'
import { answerInside } from '../../api/http/inside.ts'
import type { BoxDriver } from '../../drivers/box/driver.ts'
import { listenInside } from '../../drivers/box/inside.ts'
import type { Home } from '../../drivers/host/home.ts'
import { insideToken } from '../../model/account/token.ts'
import type { World } from '../../reconcile/step.ts'
import type { Db } from '../../store/db.ts'
import type { SandboxFeed } from '../../store/sandbox/feed.ts'
import { listRunning, type RunningSandbox } from '../../store/sandbox/inside.ts'
import type { ControlPlane } from '../control-plane.ts'
import { openSockets } from '../sockets.ts'

export interface Inside {
  /** A box that is ensured through these has its socket before it runs. */
  boxes: BoxDriver
  /** Listens for every sandbox that runs, from now on. */
  start(server: FastifyInstance): Promise<void>
  close(): Promise<void>
}

type Ground = {
  db: Db
  log: ControlPlane['log']
  home: Pick<Home, 'path' | 'uidStart'>
  world: Pick<World, 'boxes' | 'encryptionKey'>
}

/**
 * The sockets inside sandboxes, one for each that runs. Those that this process starts are opened by it; of the others,
 * and of those that are deleted, it hears.
 */
export function openInside({ home, db, world, log }: Ground, feed: SandboxFeed): Inside {
  let server: FastifyInstance | undefined
  let unsubscribe = () => {}

  const answererOf = (answering: FastifyInstance, id: string, name: string) =>
    answerInside(answering, { name, token: insideToken(world.encryptionKey, id) })
  const sockets = openSockets<RunningSandbox>(
    (ids) => listRunning(db, ids),
    ({ id, slot, name }) => listenInside(home, { id, slot }, answererOf(server!, id, name)),
  )

  function lookLater(ids: string[] | null): void {
    // A connection that was lost is made again, and then everything is looked at.
    sockets.look(ids).catch((err) => log.warn({ err }, 'could not open the sockets inside sandboxes'))
  }

  return {
    boxes: {
      ...world.boxes,
      async ensureBox(spec) {
        if (server) await sockets.ensure({ id: spec.id, slot: spec.slot, name: spec.hostname })
        return world.boxes.ensureBox(spec)
      },
    },
    async start(answering) {
      server = answering
      await sockets.look(null)
      unsubscribe = feed.subscribe((change) => {
        if (change === undefined) lookLater(null)
        else if (change.what === 'sandbox') lookLater([change.sandboxId])
      })
    },
    async close() {
      unsubscribe()
      server = undefined
      await sockets.close()
    },
  }
}
