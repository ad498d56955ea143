// Keeps the newer edge of every recovery window. It is no step of the loop: one statement each half second for all
// clusters together costs less than a turn each, and the edge may trail the clock by three seconds at most.

import { endOfRecords, formatLsn, type Lsn, parseLsn } from '../../model/postgres/wal.ts'
import { holdLock } from '../../store/listen.ts'
import { type ClusterToSample, listClustersToSample, recordSamples, type Sample } from '../../store/postgres/archive.ts'
import type { World } from '../step.ts'

export interface Sampler {
  stop(): Promise<void>
}

/** A clock that was read, and the place in the log that everything stamped up to it lies before, once that is known. */
export interface Candidate {
  at: bigint
  lsn: Lsn | undefined
}

/** One look at a source. */
export interface Look {
  at: bigint
  /** Where the next record goes. */
  insertLsn: Lsn
  /** What the archive has. */
  archivedLsn: Lsn
}

const tickMillis = 500

/**
 * A commit is stamped before its record is written, so the place is read at least this long after the clock: by then
 * every commit that was stamped up to it has been written.
 */
const settleMicros = 1_000_000n

/** Candidates that are not archived yet wait; with the archive down for long only some of them need to. */
const most = 20

export interface Progress {
  candidates: Candidate[]
  reached: Candidate | undefined
}

/** What a look makes of the candidates so far: the newest that is archived, and those still waiting. Pure. */
export function considerLook(candidates: Candidate[], look: Look): Progress {
  const placed = candidates.map((candidate) => {
    const isSettled = look.at - candidate.at >= settleMicros
    return candidate.lsn === undefined && isSettled ? { ...candidate, lsn: endOfRecords(look.insertLsn) } : candidate
  })
  const reached = placed.findLast((candidate) => candidate.lsn !== undefined && candidate.lsn <= look.archivedLsn)
  const waiting = placed.filter((candidate) => reached === undefined || candidate.at > reached.at)
  return { reached, candidates: [...waiting.slice(-most), { at: look.at, lsn: undefined }] }
}

export function startSampler(world: World, lockConfig: Parameters<typeof holdLock>[0]): Sampler {
  const known = new Map<string, Candidate[]>()
  const lock = holdLock(lockConfig, 'sampler')
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> = Promise.resolve()

  function tick(): void {
    running = (lock.held() ? sampleAll(world, known) : Promise.resolve())
      .catch(() => {}) // a database is away: the edge stays where it is
      .then(() => {
        if (!stopped) timer = setTimeout(tick, tickMillis)
      })
  }
  tick()
  return {
    async stop() {
      stopped = true
      clearTimeout(timer)
      await running
      await lock.close()
    },
  }
}

async function sampleAll(world: World, known: Map<string, Candidate[]>): Promise<void> {
  const clusters = await listClustersToSample(world.db)
  const found = await Promise.all(clusters.map((cluster) => sampleOne(world, known, cluster).catch(() => undefined)))
  const samples = found.filter((sample) => sample !== undefined)
  if (samples.length > 0) await recordSamples(world.db, samples)
  const current = new Set(clusters.map(keyOf))
  for (const key of known.keys()) if (!current.has(key)) known.delete(key)
}

async function sampleOne(
  world: World,
  known: Map<string, Candidate[]>,
  cluster: ClusterToSample,
): Promise<Sample | undefined> {
  const look = await lookAt(world, cluster)
  if (!look) return undefined
  const key = keyOf(cluster)
  const { candidates, reached } = considerLook(known.get(key) ?? [], look)
  known.set(key, candidates)
  return reached && { clusterId: cluster.id, epoch: cluster.epoch, at: reached.at, lsn: formatLsn(reached.lsn!) }
}

// The function behind the view pg_replication_slots: the process that answers reads the catalogs of a view once and keeps
// them, which is a megabyte for as long as the cluster lives.
const question = `select extract(epoch from clock_timestamp()) as clock, pg_current_wal_insert_lsn() as insert,
  slot.restart_lsn as archived from pg_get_replication_slots() slot where slot.slot_name = $1`

async function lookAt({ postgres }: World, { id, slot }: ClusterToSample): Promise<Look | undefined> {
  const [row] = await postgres.watch<{ clock: string; insert: string; archived: string | null }>(
    id,
    'postgres',
    question,
    [slot],
  )
  if (!row?.archived) return undefined
  // Seconds with six digits behind the point.
  const at = BigInt(row.clock.replace('.', ''))
  return { at, insertLsn: parseLsn(row.insert), archivedLsn: parseLsn(row.archived) }
}

function keyOf(cluster: ClusterToSample): string {
  return `${cluster.id}/${cluster.epoch}`
}
