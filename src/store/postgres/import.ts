import { newId } from '../../model/ids.ts'
import type { CopyFacts, Import, ImportProgress } from '../../model/postgres/import.ts'
import type { Query, Tx } from '../db.ts'
import { enqueue } from '../work.ts'

const columns = `import.id, cluster_id as "clusterId", state, state_since as "stateSince", progress_at as "progressAt",
  created_at as "createdAt", finished_at as "finishedAt", source, source_name as "sourceName", database, jobs, live,
  addresses, extensions, warnings, tables_done as "tablesDone", tables_total as "tablesTotal", bytes_done as "bytesDone",
  bytes_total as "bytesTotal", table_name as "tableName", lag_bytes as "lagBytes", lag_seconds as "lagSeconds",
  transaction, failure`

export interface NewImport {
  clusterId: string
  source: Buffer
  sourceName: string
  database: string
  jobs: number
  live: boolean
}

/** Returns undefined when one is in progress. */
export async function insertImport(tx: Tx, input: NewImport): Promise<string | undefined> {
  const id = newId()
  const { rowCount } = await tx.query(
    `insert into import (id, cluster_id, source, source_name, database, jobs, live) values ($1, $2, $3, $4, $5, $6, $7)
     on conflict (cluster_id) where state not in ('done', 'failed', 'canceled') do nothing`,
    [id, input.clusterId, input.source, input.sourceName, input.database, input.jobs, input.live],
  )
  if (rowCount === 0) return undefined
  await enqueue(tx, 'import', id)
  return id
}

export async function loadImport(db: Query, id: string): Promise<Import | undefined> {
  const { rows } = await db.query<Import>(`select ${columns} from import where id = $1`, [id])
  return rows[0]
}

export type ListedImport = Import & { progress: string | null }

/** The last import of a cluster, in any state. */
export async function findLastImport(db: Query, clusterId: string): Promise<ListedImport | undefined> {
  const { rows } = await db.query<ListedImport>(
    `select ${columns}, work.note as progress from import
     left join work on work.kind = 'import' and work.resource_id = import.id
     where cluster_id = $1 order by created_at desc, import.id limit 1`,
    [clusterId],
  )
  return rows[0]
}

export async function setImportAddresses(db: Query, id: string, addresses: string[]): Promise<void> {
  await db.query('update import set addresses = $2 where id = $1', [id, addresses])
}

export async function setImportFacts(tx: Tx, id: string, facts: CopyFacts): Promise<void> {
  await tx.query(
    `update import set extensions = $2, warnings = $3, tables_total = $4, bytes_total = $5 where id = $1`,
    [id, JSON.stringify(facts.extensions), facts.warnings, facts.tables, facts.bytes],
  )
}

/** Lets the server of the cluster run subscriptions; the loop restarts it for that. */
export async function allowSubscriptions(tx: Tx, clusterId: string): Promise<void> {
  const { rowCount } = await tx.query('update cluster set subscribes = true where id = $1 and not subscribes', [
    clusterId,
  ])
  if (rowCount === 1) await enqueue(tx, 'cluster', clusterId)
}

/** Only an increase counts as progress, so that a copy that starts again and again ends at its deadline. */
export async function setImportProgress(tx: Tx, id: string, progress: ImportProgress): Promise<void> {
  await tx.query(
    `update import set
       progress_at = case when $2 > tables_done or $3 > bytes_done then now() else progress_at end,
       tables_done = greatest($2, tables_done), bytes_done = greatest($3, bytes_done), table_name = $4 where id = $1`,
    [id, progress.tablesDone, progress.bytesDone, progress.tableName],
  )
}

/** A new phase counts from zero. */
export async function resetImportProgress(tx: Tx, id: string): Promise<void> {
  await tx.query(
    'update import set progress_at = null, tables_done = 0, bytes_done = 0, table_name = null where id = $1',
    [id],
  )
}

export async function setImportCopied(tx: Tx, id: string): Promise<void> {
  await tx.query(
    `update import set progress_at = null, tables_done = coalesce(tables_total, 0), table_name = null where id = $1`,
    [id],
  )
}

export async function setImportLag(
  tx: Tx,
  id: string,
  lag: { bytes: number; seconds: number; transaction: string | null } | null,
): Promise<void> {
  await tx.query('update import set lag_bytes = $2, lag_seconds = $3, transaction = $4 where id = $1', [
    id,
    lag?.bytes ?? null,
    lag?.seconds ?? null,
    lag?.transaction ?? null,
  ])
}

export async function addImportWarning(tx: Tx, id: string, warning: string): Promise<void> {
  await tx.query('update import set warnings = array_append(array_remove(warnings, $2), $2) where id = $1', [
    id,
    warning,
  ])
}

export async function hasActiveImport(db: Query, clusterId: string): Promise<boolean> {
  const { rows } = await db.query(
    `select 1 from import where cluster_id = $1 and state not in ('done', 'failed', 'canceled')`,
    [clusterId],
  )
  return rows.length > 0
}

/** Forgets the password of the source. A failed import has the note of its last transition. */
export async function setImportEnded(tx: Tx, id: string): Promise<void> {
  await tx.query(
    `update import set finished_at = now(), source = null, transaction = null,
       failure = (select note from event where kind = 'import' and resource_id = $1 and to_state = 'failing'
         order by event.id desc limit 1)
     where id = $1`,
    [id],
  )
}
