// Advances the end of every recovery window, which may lag behind the clock by at most three seconds. This is not a step
// of the background loop: one statement every half second for all clusters costs less than a turn for each of them.

import { endOfRecords, formatLsn, parseLsn } from '../../model/postgres/wal.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import { holdLock } from '../../store/listen.ts'
import { requestCheck } from '../../store/postgres/cluster.ts'
import { markUndescribed } from '../../store/postgres/cluster-describe.ts'
import {
  type ClockChange,
  type ClusterToSample,
  listClustersToSample,
  recordSamples,
  type Sample,
  setClockOffset,
  startStretch,
} from '../../store/postgres/stretch.ts'
import type { World } from '../step.ts'
import {
  type Clock,
  considerObservation,
  findStep,
  maxPauseMicros,
  newClock,
  type Observation,
  restartClock,
} from './clock.ts'
import { type Archived, type ArchiveRecorder, archiveRecorder } from './record.ts'

export interface Sampler {
  stop(): Promise<void>
}

const intervalMs = 500

/** A difference between the clocks of a source and of the platform that is worth a report. */
const offsetMicros = 2_000_000n

/** What is known about the clock of a source. */
interface Watch {
  clock: Clock
  /** The reported difference from the platform's clock. */
  offset: Micros
  /** While the WAL since the last observation is being read. */
  isReading: boolean
}

class Watches extends Map<string, Watch> {
  /** The last search of WAL. One runs at a time, because after a start all clusters need one. */
  search: Promise<unknown> = Promise.resolve()
}

export function startSampler(world: World, lockConfig: Parameters<typeof holdLock>[0]): Sampler {
  const known = new Watches()
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

async function sampleAll(world: World, known: Watches, recorder: ArchiveRecorder): Promise<void> {
  const clusters = await listClustersToSample(world.db)
  const archived: Archived[] = []
  const sample = (cluster: ClusterToSample) => sampleOne(world, known, cluster, archived).catch(() => undefined)
  const found = await Promise.all(clusters.map(sample))
  recorder.note(archived)
  const samples = found.filter((sample) => sample !== undefined)
  if (samples.length > 0) await recordSamples(world.db, samples)
  const current = new Set(clusters.map(({ stretchId }) => stretchId))
  for (const key of known.keys()) if (!current.has(key)) known.delete(key)
}

async function sampleOne(
  world: World,
  known: Watches,
  cluster: ClusterToSample,
  archived: Archived[],
): Promise<Sample | undefined> {
  const seen = await observe(world, cluster)
  if (!seen) return undefined
  const { id, epoch, timeline } = cluster
  archived.push({ id, epoch, timeline, lsn: seen.archivedLsn, at: seen.at })
  const watch = known.get(cluster.stretchId) ?? { clock: newClock, offset: 0n, isReading: false }
  known.set(cluster.stretchId, watch)
  if (watch.isReading) return undefined
  await reportOffset(world, cluster, watch, seen)
  const { last } = watch.clock
  if (last === undefined || seen.steady.before - last.steady.after > maxPauseMicros) {
    if (cluster.latestAt === null) watch.clock = restartClock(seen)
    else void resume(world, known, cluster, watch, seen)
    return undefined
  }
  const step = findStep(last, seen)
  if (step !== undefined) {
    const passed = seen.steady.after - last.steady.before
    await begin(world, cluster, seen, { step, until: last.at + passed, since: seen.at - passed })
    return undefined
  }
  const { clock, reached } = considerObservation(watch.clock, seen)
  watch.clock = clock
  // A window that ran ahead of the platform's clock would promise times that have not come yet.
  if (!reached || reached.at > nowMicros()) return undefined
  const { at, lsn, beginLsn } = reached
  return { stretchId: cluster.stretchId, at, lsn: formatLsn(lsn!), beginLsn: formatLsn(beginLsn) }
}

/** The clock may have been changed while nobody looked: then the times in the WAL since the last sample show it. */
async function resume(
  world: World,
  known: Watches,
  cluster: ClusterToSample,
  watch: Watch,
  seen: Observation,
): Promise<void> {
  watch.isReading = true
  try {
    const latest = cluster.latestAt!
    const search = known.search.then(() => findShownBefore(world, cluster, seen))
    known.search = search.catch(() => undefined)
    const until = await search
    const isBack = seen.at < latest
    if (isBack || until !== undefined) {
      const step = isBack ? seen.at - latest : 0n
      await begin(world, cluster, seen, { step, until: until ?? latest, since: seen.at })
    } else watch.clock = restartClock(seen)
  } catch {
    // The state database is unavailable. The next observation tries again.
  } finally {
    watch.isReading = false
  }
}

/** The time that the clock showed before it was set back; undefined if it was not. */
async function findShownBefore(
  { repository }: World,
  cluster: ClusterToSample,
  seen: Observation,
): Promise<Micros | undefined> {
  const { id, epoch, timeline, latestAt, latestLsn } = cluster
  const range = { from: parseLsn(latestLsn!), to: seen.archivedLsn }
  if (range.to <= range.from) return undefined
  return repository.findStepBack(id, epoch, timeline, range).then(
    (found) => found?.newest,
    // Nothing is known about the time in between.
    () => latestAt!,
  )
}

/** Starts a stretch at the observation. The next look at the cluster finds it. */
function begin({ db }: World, { id, epoch }: ClusterToSample, seen: Observation, clock: ClockChange): Promise<void> {
  const fromLsn = formatLsn(endOfRecords(seen.insertLsn))
  return db.transaction(async (tx) => {
    await startStretch(tx, { clusterId: id, epoch, fromLsn, fromAt: seen.at, clock })
    await markUndescribed(tx, id)
    await requestCheck(tx, id)
  })
}

async function reportOffset({ db }: World, { id, stretchId }: ClusterToSample, watch: Watch, seen: Observation) {
  const difference = seen.at - nowMicros()
  const offset = difference > -offsetMicros && difference < offsetMicros ? 0n : difference
  const change = offset - watch.offset
  if (change > -offsetMicros && change < offsetMicros && (offset === 0n) === (watch.offset === 0n)) return
  await db.transaction(async (tx) => {
    await setClockOffset(tx, stretchId, offset)
    await requestCheck(tx, id)
  })
  watch.offset = offset
}

// Calls the function behind the view pg_replication_slots, because a backend caches the catalog entries of a view: a
// megabyte for as long as the connection is open.
const query = `select pg_current_wal_insert_lsn() as insert, extract(epoch from clock_timestamp()) as clock,
  slot.restart_lsn as archived from pg_get_replication_slots() slot where slot.slot_name = $1`

async function observe({ postgres }: World, { id, slot }: ClusterToSample): Promise<Observation | undefined> {
  const before = steadyMicros()
  const [row] = await postgres.watch<{ clock: string; insert: string; archived: string | null }>(
    id,
    'postgres',
    query,
    [slot],
  )
  if (!row?.archived) return undefined
  // Seconds with six decimal places.
  const at = BigInt(row.clock.replace('.', ''))
  const steady = { before, after: steadyMicros() }
  return { at, steady, insertLsn: parseLsn(row.insert), archivedLsn: parseLsn(row.archived) }
}

function steadyMicros(): Micros {
  return process.hrtime.bigint() / 1000n
}
