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
import { openSockets } from './sockets.ts'

export interface SandboxSockets {
  /** Wraps the driver so that a box has its socket before it starts. */
  boxes: BoxDriver
  /** Opens the sockets of all running sandboxes and follows changes from then on. */
  start(server: FastifyInstance): Promise<void>
  close(): Promise<void>
}

type Parts = {
  db: Db
  log: ControlPlane['log']
  home: Pick<Home, 'path' | 'uidStart'>
  world: Pick<World, 'boxes' | 'encryptionKey'>
}

/**
 * The sockets inside sandboxes, one per running sandbox. A sandbox that this process starts gets its socket first; those
 * started or deleted by other processes are learned from the feed.
 */
export function openSandboxSockets({ home, db, world, log }: Parts, feed: SandboxFeed): SandboxSockets {
  let server: FastifyInstance | undefined
  let unsubscribe = () => {}

  const handlerFor = (answering: FastifyInstance, id: string, name: string) =>
    answerInside(answering, { name, token: insideToken(world.encryptionKey, id) })
  const sockets = openSockets<RunningSandbox>(
    (ids) => listRunning(db, ids),
    ({ id, slot, name }) => listenInside(home, { id, slot }, handlerFor(server!, id, name)),
  )

  function refreshLater(ids: string[] | null): void {
    // Errors are only logged: a reconnect of the feed refreshes all sockets.
    sockets.refresh(ids).catch((err) => log.warn({ err }, 'opening the API sockets of sandboxes failed'))
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
      await sockets.refresh(null)
      unsubscribe = feed.subscribe((change) => {
        if (change === undefined) refreshLater(null)
        else if (change.what === 'sandbox') refreshLater([change.sandboxId])
      })
    },
    async close() {
      unsubscribe()
      server = undefined
      await sockets.close()
    },
  }
}
