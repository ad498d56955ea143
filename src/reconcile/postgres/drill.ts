import type { DrillSpec } from '../../drivers/postgres/drill/driver.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import type { Drill, drillStates } from '../../model/postgres/drill.ts'
import { clusterSpec } from '../../model/postgres/spec.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import {
  deleteScratch,
  deleteScratchRows,
  findClusterFailure,
  findRunningDrill,
  setDrillDone,
  setDrillPassed,
  startDrill,
} from '../../store/postgres/drill.ts'
import { findRestore } from '../../store/postgres/restore.ts'
import { listWindows } from '../../store/postgres/stretch.ts'
import { advance, type Steps, type World, wait } from '../step.ts'

const pauseSeconds = 0.3

/** Left free, so that a drill does not fill the disk that other clusters use. */
const spareBytes = 1024 ** 3

export const drillSteps: Steps<typeof drillStates, Drill> = {
  async queued(drill, { db, hosting }) {
    const source = await loadCluster(db, drill.clusterId)
    const obstacle = await findObstacle(db, source)
    if (obstacle) return advance('failed', obstacle, (tx) => setDrillDone(tx, drill, obstacle))
    if (await findRunningDrill(db)) return wait(5, 'waiting for another drill on this machine')
    const needed = (source!.storageUsedBytes ?? 0) * 2 + spareBytes
    if ((await hosting.freeBytes()) < needed) {
      return wait(60, `waiting until ${Math.ceil(needed / 1024 ** 2)} MB of the disk are free`)
    }
    return advance('started', '', (tx) => startDrill(tx, drill, source!))
  },

  async restoring(drill, world) {
    const { source, scratch } = await loadBoth(drill, world)
    if (source?.state !== 'ready') return advance('failed', `the cluster is ${source?.state ?? 'gone'}`)
    if (scratch?.state === 'ready') return advance('restored')
    if (scratch?.state === 'failed') {
      return advance('failed', (await findClusterFailure(world.db, scratch.id)) ?? 'the restore failed')
    }
    if (!scratch) return advance('failed', 'the scratch cluster is gone')
    const restore = await findRestore(world.db, scratch.id)
    return wait(pauseSeconds, `restoring: ${restore?.phase ?? scratch.state}`)
  },

  async checking(drill, world) {
    const { source, scratch } = await loadBoth(drill, world)
    if (source?.state !== 'ready') return advance('failed', `the cluster is ${source?.state ?? 'gone'}`)
    if (scratch?.state !== 'ready') return advance('failed', `the scratch cluster is ${scratch?.state ?? 'gone'}`)
    const server = { ...clusterSpec(scratch, world.hosting), closed: true }
    const spec: DrillSpec = { ...server, query: source.drillQuery }
    const pages = await checkPages(scratch, spec, world)
    if (pages) return pages
    const contents = await world.drills.inspectContents(scratch.id, spec)
    if (contents.is === 'failed') return advance('failed', contents.reason)
    if (contents.is === 'passed') {
      return advance('passed', '', (tx) => setDrillPassed(tx, drill.id, contents.answer))
    }
    if (contents.is === 'absent') {
      await world.postgres.ensureRunning(scratch.id, server)
      await world.drills.startContents(scratch.id, spec)
    }
    return wait(pauseSeconds, 'checking tables and indexes')
  },

  async cleaning(drill, { db, drills }) {
    const id = drill.scratchId!
    await drills.remove(id)
    const scratch = await loadCluster(db, id)
    if (!scratch || scratch.state === 'purged') {
      return advance('cleaned', '', async (tx) => {
        await deleteScratchRows(tx, id)
        await setDrillDone(tx, drill)
      })
    }
    return wait(pauseSeconds, 'deleting the scratch cluster', (tx) => deleteScratch(tx, id))
  },
}

async function findObstacle(db: World['db'], source: Cluster | undefined): Promise<string | undefined> {
  if (source?.state !== 'ready') return `the cluster is ${source?.state ?? 'gone'}`
  return (await listWindows(db, source.id)).length === 0 ? 'there is no recovery window any more' : undefined
}

async function loadBoth({ clusterId, scratchId }: Drill, { db }: World) {
  return { source: await loadCluster(db, clusterId), scratch: await loadCluster(db, scratchId!) }
}

/** Undefined once all page checksums are verified. The server is stopped meanwhile, so that no page changes. */
async function checkPages(scratch: Cluster, spec: DrillSpec, { postgres, drills }: World) {
  const pages = await drills.inspectPages(scratch.id)
  if (pages.is === 'passed') return undefined
  if (pages.is === 'failed') return advance('failed', pages.reason)
  if (pages.is === 'absent') {
    await postgres.stop(scratch.id)
    await drills.startPages(scratch.id, spec)
  }
  return wait(pauseSeconds, 'reading every page')
}
