import { newId } from '../../model/ids.ts'
import { type Cluster, clusterStates } from '../../model/postgres/cluster.ts'
import { type Drill, type DrillSchedule, passed } from '../../model/postgres/drill.ts'
import { commandsIn } from '../../model/states.ts'
import type { Micros } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'
import { lockState, transition } from '../transition.ts'
import { enqueue } from '../work.ts'
import { insertCluster } from './cluster.ts'
import { markUndescribed } from './cluster-describe.ts'
import { inherited, insertPins, insertRestore, pinsOf } from './restore.ts'
import { planForPosition } from './restore-plan.ts'
import { listWindows, type RecoveryWindow } from './stretch.ts'

const columns = `drill.id, cluster_id as "clusterId", state, state_since as "stateSince", progress_at as "progressAt",
  created_at as "createdAt", started_at as "startedAt", target, scratch_id as "scratchId", finished_at as "finishedAt",
  seconds, result, answer`

/** Returns false when one is in progress. */
export async function queueDrill(tx: Tx, clusterId: string): Promise<boolean> {
  const id = newId()
  const { rowCount } = await tx.query(
    `insert into drill (id, cluster_id) values ($1, $2) on conflict (cluster_id) where state <> 'done' do nothing`,
    [id, clusterId],
  )
  if (rowCount === 0) return false
  await enqueue(tx, 'drill', id)
  return true
}

export async function setDrillQuery(tx: Tx, clusterId: string, query: string | null): Promise<void> {
  await tx.query(
    `update cluster set drill_query = $2,
       drill_query_at = case when drill_query is distinct from $2 then now() else drill_query_at end where id = $1`,
    [clusterId, query],
  )
  await markUndescribed(tx, clusterId)
}

export async function loadDrill(db: Query, id: string): Promise<Drill | undefined> {
  const { rows } = await db.query<Drill>(`select ${columns} from drill where id = $1`, [id])
  return rows[0]
}

export type ListedDrill = Drill & { progress: string | null }

/** The last hundred drills, newest first. */
export async function listDrills(db: Query, clusterId: string): Promise<ListedDrill[]> {
  const { rows } = await db.query<ListedDrill>(
    `select ${columns}, work.note as progress from drill
     left join work on work.kind = 'drill' and work.resource_id = drill.id
     where cluster_id = $1 order by created_at desc, drill.id limit 100`,
    [clusterId],
  )
  return rows
}

/** The drill that is running on this host, if any. */
export async function findRunningDrill(db: Query): Promise<string | undefined> {
  const { rows } = await db.query<{ id: string }>(
    `select id from drill where state in ('restoring', 'checking', 'cleaning')`,
  )
  return rows[0]?.id
}

export async function readDrillSchedule(db: Query, clusterId: string): Promise<DrillSchedule> {
  const { rows } = await db.query<DrillSchedule>({
    name: 'read-drill-schedule',
    text: `select exists (select 1 from drill where cluster_id = $1 and state <> 'done') as active,
             extract(epoch from now() - coalesce(
               (select max(created_at) from drill where cluster_id = $1), cluster.created_at))::float8 as "ageSeconds",
             (select result from drill where cluster_id = $1 and state = 'done'
              order by finished_at desc limit 1) as result
           from cluster where id = $1`,
    values: [clusterId],
  })
  return rows[0]!
}

interface Moment {
  at: Micros
  lsn: string
}

/**
 * Picks a random sample of the window or its end. Samples from before the drill query was set are excluded, because the
 * tables it reads may not have existed.
 */
async function pickMoment(db: Query, clusterId: string, window: RecoveryWindow): Promise<Moment> {
  const { rows } = await db.query<Moment>(
    `select at, lsn::text as lsn from (
       select at, lsn from sample join cluster on cluster.id = $1
       where stretch_id = $2 and (drill_query is null or at >= drill_query_at)
         and at between timestamptz 'epoch' + $3::bigint * interval '1 microsecond'
         and timestamptz 'epoch' + $4::bigint * interval '1 microsecond'
       union
       select timestamptz 'epoch' + $4::bigint * interval '1 microsecond', $5::pg_lsn) moment
     order by random() limit 1`,
    [clusterId, window.stretchId, window.earliest.toString(), window.latest.toString(), window.latestLsn],
  )
  return rows[0]!
}

/** Creates the scratch cluster and its restore. Throws when the recovery window no longer exists. */
export async function startDrill(tx: Tx, drill: Drill, source: Cluster): Promise<void> {
  const window = (await listWindows(tx, source.id)).at(-1)
  if (!window) throw new Error('the recovery window no longer exists')
  const { at, lsn } = await pickMoment(tx, source.id, window)
  const plan = await planForPosition(tx, source.id, window, lsn)
  const id = newId()
  // No receiver archives its WAL, so commits must not wait for one.
  const settings = { ...inherited(source), synchronousArchive: false, scratch: true }
  if (!(await insertCluster(tx, { ...settings, id, name: `drill-${drill.id}` }))) {
    throw new Error(`the name drill-${drill.id} is taken`)
  }
  const restore = { clusterId: id, sourceClusterId: source.id, backupId: null, pitrTime: at, plan }
  await insertRestore(tx, { ...restore, purpose: 'drill' })
  await insertPins(tx, id, pinsOf(plan))
  await enqueue(tx, 'cluster', id)
  await tx.query(
    `update drill set scratch_id = $2, target = timestamptz 'epoch' + $3::bigint * interval '1 microsecond',
       started_at = now() where id = $1`,
    [drill.id, id, at.toString()],
  )
}

export async function findClusterFailure(db: Query, clusterId: string): Promise<string | undefined> {
  const { rows } = await db.query<{ note: string }>(
    `select note from event where kind = 'cluster' and resource_id = $1 and to_state = 'failed' order by id desc limit 1`,
    [clusterId],
  )
  return rows[0]?.note
}

export async function setDrillPassed(tx: Tx, id: string, answer: string | null): Promise<void> {
  await tx.query('update drill set result = $2, answer = $3 where id = $1', [id, passed, answer])
}

/** Deletes the scratch cluster in any state, unless it is already being deleted. */
export async function deleteScratch(tx: Tx, id: string): Promise<void> {
  const state = await lockState(tx, 'cluster', id)
  if (state === undefined || !commandsIn(clusterStates, state).includes('delete')) return
  await transition(tx, 'cluster', clusterStates, id, 'delete', 'the drill is over')
}

/** Removes all rows of the scratch cluster. */
export async function deleteScratchRows(tx: Tx, id: string): Promise<void> {
  await tx.query('delete from restore where cluster_id = $1', [id])
  await tx.query(`delete from cluster where id = $1 and scratch and state = 'purged'`, [id])
}

/** A drill without a result has failed with the note of its last transition. */
export async function setDrillDone(tx: Tx, drill: Drill, reason = ''): Promise<void> {
  await tx.query(
    `update drill set finished_at = now(), seconds = coalesce(extract(epoch from now() - started_at), 0),
       result = coalesce(result, 'failed: ' || coalesce(
         (select note from event where kind = 'drill' and resource_id = $1 and to_state = 'cleaning'
          order by event.id desc limit 1), $2::text))
     where id = $1`,
    [drill.id, reason],
  )
  await enqueue(tx, 'cluster', drill.clusterId)
}
