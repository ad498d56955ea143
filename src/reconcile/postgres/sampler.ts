// Advances the end of every recovery window, which may lag behind the clock by at most three seconds. This is not a step
// of the background loop: one statement every half second for all clusters costs less than a turn for each of them.

import { endOfRecords, formatLsn, type Lsn, parseLsn } from '../../model/postgres/wal.ts'
import { holdLock } from '../../store/listen.ts'
import { type ClusterToSample, listClustersToSample, recordSamples, type Sample } from '../../store/postgres/archive.ts'
import type { World } from '../step.ts'
import { type Archived, type ArchiveRecorder, archiveRecorder } from './record.ts'

export interface Sampler {
  stop(): Promise<void>
}

/** A time read from the source, and a position that all commits up to this time precede, once it is known. */
export interface Candidate {
  at: bigint
  lsn: Lsn | undefined
}

/** One observation of a source. */
export interface Observation {
  at: bigint
  /** The position of the next WAL record. */
  insertLsn: Lsn
  /** The end of the archived WAL. */
  archivedLsn: Lsn
}

const intervalMs = 500

/**
 * A commit gets its timestamp before its record is written. So the position is read at least this long after the clock;
 * by then every commit with a timestamp up to that clock has been written.
 */
const settleMicros = 1_000_000n

/** Bounds the memory while the archive is down for long. */
const maxCandidates = 20

export interface Progress {
  candidates: Candidate[]
  reached: Candidate | undefined
}

/** Updates the candidates with an observation: returns the newest archived one and those still waiting. Pure. */
export function considerObservation(candidates: Candidate[], seen: Observation): Progress {
  const placed = candidates.map((candidate) => {
    const isSettled = seen.at - candidate.at >= settleMicros
    return candidate.lsn === undefined && isSettled ? { ...candidate, lsn: endOfRecords(seen.insertLsn) } : candidate
  })
  const reached = placed.findLast((candidate) => candidate.lsn !== undefined && candidate.lsn <= seen.archivedLsn)
  const waiting = placed.filter((candidate) => reached === undefined || candidate.at > reached.at)
  return { reached, candidates: [...waiting.slice(-maxCandidates), { at: seen.at, lsn: undefined }] }
}

export function startSampler(world: World, lockConfig: Parameters<typeof holdLock>[0]): Sampler {
  const known = new Map<string, Candidate[]>()
  const recorder = archiveRecorder(world)
  const lock = holdLock(lockConfig, 'sampler')
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let running: Promise<void> = Promise.resolve()

  function tick(): void {
    running = (lock.held() ? sampleAll(world, known, recorder) : Promise.resolve())
      .catch(() => {}) // a database is unavailable: the windows stay as they are
      .then(() => {
        if (!stopped) timer = setTimeout(tick, intervalMs)
      })
  }
  tick()
  return {
    async stop() {
      stopped = true
      clearTimeout(timer)
      await running
      await recorder.settled()
      await lock.close()
    },
  }
}

async function sampleAll(world: World, known: Map<string, Candidate[]>, recorder: ArchiveRecorder): Promise<void> {
  const clusters = await listClustersToSample(world.db)
  const archived: Archived[] = []
  const sample = (cluster: ClusterToSample) => sampleOne(world, known, cluster, archived).catch(() => undefined)
  const found = await Promise.all(clusters.map(sample))
  recorder.note(archived)
  const samples = found.filter((sample) => sample !== undefined)
  if (samples.length > 0) await recordSamples(world.db, samples)
  const current = new Set(clusters.map(keyOf))
  for (const key of known.keys()) if (!current.has(key)) known.delete(key)
}

async function sampleOne(
  world: World,
  known: Map<string, Candidate[]>,
  cluster: ClusterToSample,
  archived: Archived[],
): Promise<Sample | undefined> {
  const seen = await observe(world, cluster)
  if (!seen) return undefined
  const { id, epoch, timeline } = cluster
  archived.push({ id, epoch, timeline, lsn: seen.archivedLsn, at: seen.at })
  const key = keyOf(cluster)
  const { candidates, reached } = considerObservation(known.get(key) ?? [], seen)
  known.set(key, candidates)
  return reached && { clusterId: cluster.id, epoch: cluster.epoch, at: reached.at, lsn: formatLsn(reached.lsn!) }
}

// Calls the function behind the view pg_replication_slots, because a backend caches the catalog entries of a view: a
// megabyte for as long as the connection is open.
const query = `select extract(epoch from clock_timestamp()) as clock, pg_current_wal_insert_lsn() as insert,
  slot.restart_lsn as archived from pg_get_replication_slots() slot where slot.slot_name = $1`

async function observe({ postgres }: World, { id, slot }: ClusterToSample): Promise<Observation | undefined> {
  const [row] = await postgres.watch<{ clock: string; insert: string; archived: string | null }>(
    id,
    'postgres',
    query,
    [slot],
  )
  if (!row?.archived) return undefined
  // Seconds with six decimal places.
  const at = BigInt(row.clock.replace('.', ''))
  return { at, insertLsn: parseLsn(row.insert), archivedLsn: parseLsn(row.archived) }
}

function keyOf(cluster: ClusterToSample): string {
  return `${cluster.id}/${cluster.epoch}`
}
