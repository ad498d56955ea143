// Queries on the source of an import. The server is a tenant's, so the time and the size of its answers are limited.
import pg from 'pg'
import { type ImportSource, replicationName } from '../../../model/postgres/import.ts'
import type { Home } from '../../host/home.ts'
import type { Row } from '../sql/driver.ts'
import { quoteIdentifier } from '../sql/quote.ts'
import { type ImportTask, type LiveState, SourceError } from './driver.ts'
import { importPaths, sourcePort } from './paths.ts'

/** For all queries on one connection together. */
const timeoutMs = 20_000
/** Sources that do not answer must not keep the whole loop waiting. */
const maxConnections = 3
const maxAnswerBytes = 16 * 1024 ** 2
const watchMs = 50

let openConnections = 0

export type SourceQuery = <R extends Row>(text: string, values?: unknown[]) => Promise<R[]>

/** Runs queries on one connection to the source. Failures become a SourceError for the owner of the import. */
export async function querySource<T>(
  home: Home,
  id: string,
  source: ImportSource,
  use: (query: SourceQuery) => Promise<T>,
): Promise<T> {
  if (openConnections >= maxConnections) throw new Error('too many sources of imports are being queried')
  openConnections++
  const client = new pg.Client({
    host: importPaths(home, id).sockets,
    port: sourcePort,
    user: source.user,
    // As a function, so that an empty one is not replaced by PGPASSWORD of the platform.
    password: () => source.password,
    ssl: false,
    database: source.database,
    application_name: 'berth-import',
    connectionTimeoutMillis: timeoutMs,
    query_timeout: timeoutMs,
  })
  client.on('error', () => undefined)
  const { stream } = (
    client as unknown as { connection: { stream: { bytesRead: number; destroy(error: Error): void } } }
  ).connection
  const started = performance.now()
  const watch = setInterval(() => {
    if (stream.bytesRead > maxAnswerBytes) stream.destroy(new Error('its answer is too large'))
    if (performance.now() - started > timeoutMs) stream.destroy(new Error('it did not answer in time'))
  }, watchMs)
  try {
    await client.connect()
    await client.query("set search_path = pg_catalog; set client_encoding = 'UTF8'")
    return await use(async (text, values) => (await client.query<never>(text, values)).rows)
  } catch (error) {
    throw sourceError(error)
  } finally {
    openConnections--
    clearInterval(watch)
    // Not awaited, because an unresponsive server does not close the connection either.
    void client.end().catch(() => undefined)
    setTimeout(() => stream.destroy(new Error('closed')), 1000).unref()
  }
}

const needsCertificate =
  'the source asks for a client certificate, which imports cannot present: allow the user to log in with a password only'

// SQLSTATE classes of a server that is overloaded, restarting or out of reach.
const temporary = /^(08|40|53|57)/

function sourceError(error: unknown): Error {
  if (error instanceof SourceError) return error
  const { code = '', message = String(error) } = error as { code?: string; message?: string }
  const text = cleanText(message)
  // The message would name the socket of the forwarder.
  if (/^(ECONN|ENOENT|EPIPE)/.test(code)) {
    return new SourceError('the connection to the source was interrupted', true, error)
  }
  // These are messages of the forwarder.
  if (/^0800[14]$/.test(code)) return new SourceError(text, code === '08001', error)
  if (code === '28000' && /client certificate/.test(text)) return new SourceError(needsCertificate, false, error)
  if (/^[0-9A-Z]{5}$/.test(code)) return new SourceError(`the source reports: ${text}`, temporary.test(code), error)
  return new SourceError(`the connection to the source failed: ${text}`, true, error)
}

const maxTextLength = 500

/** The text of a tenant's server, for messages and for the state database, which cannot store zero bytes. */
export function cleanText(text: string): string {
  return text
    .replaceAll(/\p{Cc}+/gu, ' ')
    .trim()
    .slice(0, maxTextLength)
}

/** Drops what a live import created at the source. Does nothing where it does not exist. */
export async function cleanSource(home: Home, id: string, task: ImportTask): Promise<void> {
  const name = replicationName(task.id)
  await querySource(home, id, task.source, async (query) => {
    // The connection of an ended dump or subscription may still hold the slot.
    await query(
      `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active_pid is not null`,
      [name],
    ).catch(() => undefined)
    await query('select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1', [name])
    await query(`drop publication if exists ${quoteIdentifier(name)}`)
  })
}

/** Tables that logical replication copies, without partitions, which their parents stand for. */
export const replicatedTables = `pg_class join pg_namespace on pg_namespace.oid = relnamespace
  where relkind in ('r', 'p') and not relispartition and relpersistence = 'p' and nspname !~ '^pg_'
    and nspname <> 'information_schema' and not exists (
      select from pg_depend where classid = 'pg_class'::regclass and objid = pg_class.oid and deptype = 'e')`

/** Creates the publication. It must exist before the slot. */
export async function ensurePublication(home: Home, id: string, task: ImportTask): Promise<void> {
  const name = replicationName(task.id)
  await querySource(home, id, task.source, async (query) => {
    const [known] = await query('select 1 from pg_publication where pubname = $1', [name])
    if (known) return
    const [list] = await query<{ tables: string | null }>(
      `select string_agg(format('%I.%I', nspname, relname), ', ') as tables from ${replicatedTables}`,
    )
    const tables = list?.tables ? `for table ${list.tables}` : ''
    await query(`create publication ${quoteIdentifier(name)} ${tables}`)
  })
}

interface SlotRow extends Row {
  status: string | null
  lag: string
  seconds: number | null
  oldest: string
  next: string
}

/**
 * Measured from where the next record will be inserted, because a transaction may be committed before its record is
 * written. At the start of a page that is behind the header of the page, which has 24 or 40 bytes.
 */
const distance = `case when pg_wal_lsn_diff(confirmed_flush_lsn, '0/0') % current_setting('wal_block_size')::int = 0
    and pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn) in (24, 40) then 0
  else pg_wal_lsn_diff(pg_current_wal_insert_lsn(), confirmed_flush_lsn) end`

export async function inspectSlot(home: Home, id: string, task: ImportTask): Promise<LiveState> {
  const name = replicationName(task.id)
  const [slot] = await querySource(home, id, task.source, (query) =>
    query<SlotRow>(
      `select to_jsonb(slot) ->> 'wal_status' as status,
         greatest(0, ${distance})::text as lag,
         extract(epoch from (select replay_lag from pg_stat_replication where pid = active_pid))::float8 as seconds,
         txid_snapshot_xmin(txid_current_snapshot())::text as oldest,
         txid_snapshot_xmax(txid_current_snapshot())::text as next
       from pg_replication_slots slot where slot_name = $1`,
      [name],
    ),
  )
  if (!slot) return { is: 'lost', reason: `the replication slot ${name} of the source is gone` }
  if (slot.status === 'lost')
    return { is: 'lost', reason: `the source has removed WAL that the slot ${name} needs (max_slot_wal_keep_size)` }
  const lagBytes = Number(slot.lag)
  return {
    is: 'running',
    lagBytes,
    lagSeconds: lagBytes === 0 ? 0 : (slot.seconds ?? 0),
    errors: 0,
    transaction: slot.oldest === slot.next ? slot.next : null,
  }
}

export interface SequenceValue {
  name: string
  value: string
  called: boolean
}

const maxSequences = 20_000

/** Reads every sequence itself, because pg_sequences does not tell a fresh sequence from one that was used once. */
export async function readSequences(home: Home, id: string, task: ImportTask): Promise<SequenceValue[]> {
  return querySource(home, id, task.source, async (query) => {
    const sequences = await query<{ name: string }>(
      `select format('%I.%I', nspname, relname) as name
       from pg_class join pg_namespace on pg_namespace.oid = relnamespace
       where relkind = 'S' and relpersistence = 'p' and nspname !~ '^pg_' and not exists (
         select from pg_depend where classid = 'pg_class'::regclass and objid = pg_class.oid and deptype = 'e')
       order by 1 limit ${maxSequences}`,
    )
    const values: SequenceValue[] = []
    for (const { name } of sequences) {
      const [row] = await query<{ value: string; called: boolean }>(
        `select last_value::text as value, is_called as called from ${name}`,
      )
      values.push({ name, value: row!.value, called: row!.called })
    }
    return values
  })
}
