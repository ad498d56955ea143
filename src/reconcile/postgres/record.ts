// Records in the repository how far the archive of each cluster is and what its files contain, so that damage to the end of
// an archive is not taken for its end, and files of one cluster are not taken for those of another.
import type { Cluster } from '../../model/postgres/cluster.ts'
import { type ArchiveHole, holeOfFile } from '../../model/postgres/damage.ts'
import { type Lsn, parseLsn } from '../../model/postgres/wal.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import { type Archive, findCurrentArchive } from '../../store/postgres/archive.ts'
import { recordDamage } from '../../store/postgres/damage.ts'
import { findRun } from '../../store/postgres/stretch.ts'
import type { World } from '../step.ts'

/** What the receiver of a cluster has acknowledged, at this time of the source's clock. */
export interface Archived {
  id: string
  epoch: number
  timeline: number
  lsn: Lsn
  at: Micros
}

interface Recorded {
  lsn: Lsn
  atMs: number
  /** Whether complete segments remain to be sealed. */
  isBehind: boolean
}

/** Each record is written to disk and waits for it. */
const intervalMs = 1000

export interface ArchiveRecorder {
  /** Returns at once. Of the positions of a cluster within a second, the last one is recorded. */
  note(archived: Archived[]): void
  settled(): Promise<void>
}

export function archiveRecorder(world: Recording, now = Date.now): ArchiveRecorder {
  const { repository } = world
  const holes: ArchiveHole[] = []
  const pending = new Map<string, Archived>()
  const recorded = new Map<string, Recorded>()
  let running: Promise<void> | undefined

  async function drain(): Promise<void> {
    for (const [key, archived] of pending) {
      if (now() - (recorded.get(key)?.atMs ?? 0) < intervalMs) continue
      pending.delete(key)
      // A failure is repeated with the next position; the receiver itself reports a broken repository.
      const isBehind = await record(archived).catch(() => true)
      recorded.set(key, { lsn: archived.lsn, atMs: now(), isBehind })
    }
  }

  // Before the end, because the marks in the record of the end are those of the last segment only.
  async function record({ id, epoch, ...end }: Archived): Promise<boolean> {
    const isBehind = await sealSegments(world, holes, id, epoch, end)
    await repository.recordEnd(id, epoch, end)
    return isBehind
  }

  return {
    note(archived) {
      const current = new Set(archived.map(keyOf))
      for (const key of recorded.keys()) if (!current.has(key)) recorded.delete(key)
      for (const each of archived) {
        const last = recorded.get(keyOf(each))
        if (!last || last.lsn < each.lsn || last.isBehind) pending.set(keyOf(each), each)
      }
      running ??= drain().finally(() => {
        running = undefined
      })
    },
    settled: async () => running,
  }
}

type Recording = Pick<World, 'db' | 'repository'>

/** Returns whether there may be more to seal. Damage stays in the list until it is recorded. */
async function sealSegments(
  { db, repository }: Recording,
  holes: ArchiveHole[],
  id: string,
  epoch: number,
  { timeline, lsn }: Pick<Archived, 'timeline' | 'lsn'>,
): Promise<boolean> {
  const { count, damaged } = await repository.sealSegments(id, epoch, timeline, lsn)
  const found = damaged.map(({ file, kind, message }) => holeOfFile(file, kind, message))
  holes.push(...found.filter((hole) => hole !== undefined).map((hole) => ({ ...hole, clusterId: id, epoch })))
  for (let wal = holes[0]; wal !== undefined; wal = holes[0]) {
    const hole = wal
    await db.transaction((tx) => recordDamage(tx, { wal: hole }))
    holes.shift()
  }
  return count > 0
}

function keyOf({ id, epoch }: Archived): string {
  return `${id}/${epoch}`
}

/** A position inside the last record, whose length is not known. */
const insideRecord = 8n

/**
 * Records the final end of a cluster that is being deleted, whose server and receiver have stopped. A server that was shut
 * down cleanly has sent everything, and its last checkpoint says how far that was.
 */
export async function recordFinalEnd(cluster: Cluster, world: World): Promise<void> {
  const archive = await findCurrentArchive(world.db, cluster.id)
  // A cluster can be deleted although its archive is broken; what was recorded while it ran remains.
  if (archive) await recordEndOf(archive, world).catch(() => undefined)
}

async function recordEndOf(archive: Archive, { db, postgres, repository }: World): Promise<void> {
  const { clusterId: id } = archive
  const { epoch, timeline } = archive
  const from = parseLsn((await findRun(db, id))?.latestLsn ?? archive.startLsn)
  const tail = await repository.archiveTail(id, epoch, timeline, from)
  const checkpoint = await postgres.findCheckpoint(id)
  const reached = tail?.end ?? 0n
  const at = nowMicros()
  if (checkpoint !== undefined && checkpoint >= reached && checkpoint > parseLsn(archive.startLsn))
    await repository.recordEnd(id, epoch, { timeline, lsn: checkpoint + insideRecord, at, isMissing: true })
  else if (reached > 0n && !tail?.damage) await repository.recordEnd(id, epoch, { timeline, lsn: reached, at })
  await sealSegments({ db, repository }, [], id, epoch, { timeline, lsn: reached })
}
