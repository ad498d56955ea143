// What is known about the source before anything is copied: whether it can be copied, and what will be missing.
import { replicationName } from '../../../model/postgres/import.ts'
import type { Home } from '../../host/home.ts'
import type { ImportSpec, ImportTask, SourceFacts } from './driver.ts'
import { cleanText, querySource, replicatedTables, type SourceQuery } from './source.ts'

/** Logical replication in its present form exists since then; pg_dump itself knows older servers. */
const oldestMajor = 10
const maxNames = 20

interface Basics extends Record<string, unknown> {
  version: number
  bytes: string
  tables: number
}

export async function inspectSource(home: Home, id: string, spec: ImportSpec, task: ImportTask): Promise<SourceFacts> {
  return querySource(home, id, task.source, async (query) => {
    const [basics] = await query<Basics>(
      `select current_setting('server_version_num')::int as version,
         pg_database_size(current_database())::text as bytes,
         (select count(*)::int from pg_class join pg_namespace on pg_namespace.oid = relnamespace
          where relkind = 'r' and relpersistence <> 't' and nspname !~ '^pg_' and nspname <> 'information_schema') as tables`,
    )
    const { version, bytes, tables } = basics!
    const major = Math.floor(version / 10_000)
    const facts: SourceFacts = { bytes: Number(bytes), tables, extensions: [], problems: [], warnings: [] }
    const newest = Number(spec.toolchain.major)
    if (major > newest) {
      facts.problems.push(
        `the source runs PostgreSQL ${major}; a cluster of version ${newest} can import versions up to ${newest}`,
      )
      return facts
    }
    if (major < oldestMajor) {
      facts.problems.push(`the source runs a PostgreSQL older than ${oldestMajor}`)
      return facts
    }
    facts.extensions = await query<{ name: string; schema: string }>(
      `select extname as name, nspname as schema from pg_extension join pg_namespace on pg_namespace.oid = extnamespace
       where extname <> 'plpgsql' order by pg_extension.oid limit 200`,
    )
    facts.problems.push(...(await findProblems(query, problemQueries)))
    facts.warnings.push(...(await findProblems(query, warningQueries)))
    if (task.live) {
      facts.problems.push(...(await findLiveProblems(query, task.id)))
      facts.warnings.push(...(await findProblems(query, liveWarningQueries)))
    }
    return facts
  })
}

/** Each query lists names; the text explains what they mean. */
type NameQuery = [explain: (names: string) => string, query: string]

async function findProblems(query: SourceQuery, queries: NameQuery[]): Promise<string[]> {
  const found: string[] = []
  for (const [explain, text] of queries) {
    const rows = await query<{ name: string }>(`${text} order by 1 limit ${maxNames + 1}`)
    if (rows.length === 0) continue
    const names = rows.slice(0, maxNames).map(({ name }) => cleanText(name))
    found.push(explain([...names, ...(rows.length > maxNames ? ['…'] : [])].join(', ')))
  }
  return found
}

const notMember = (catalog: string) =>
  `not exists (select from pg_depend where classid = '${catalog}'::regclass and objid = ${catalog}.oid and deptype = 'e')`

const problemQueries: NameQuery[] = [
  [
    (names) => `functions in C cannot be imported: ${names}`,
    `select format('%I.%I', nspname, proname) as name from pg_proc
     join pg_language on pg_language.oid = prolang join pg_namespace on pg_namespace.oid = pronamespace
     where lanname in ('c', 'internal') and nspname !~ '^pg_' and nspname <> 'information_schema' and ${notMember('pg_proc')}`,
  ],
  [
    (names) => `foreign servers of other wrappers than postgres_fdw cannot be imported: ${names}`,
    `select srvname::text as name from pg_foreign_server join pg_foreign_data_wrapper on pg_foreign_data_wrapper.oid = srvfdw
     where fdwname <> 'postgres_fdw'`,
  ],
]

const warningQueries: NameQuery[] = [
  [
    (names) => `event triggers are not copied: ${names}`,
    `select evtname::text as name from pg_event_trigger where ${notMember('pg_event_trigger')}`,
  ],
  [
    (names) => `publications are not copied: ${names}`,
    `select pubname::text as name from pg_publication where pubname !~ '^berth_import_'`,
  ],
  [
    (names) => `user mappings of foreign servers are not copied, and foreign servers cannot be reached: ${names}`,
    'select srvname::text as name from pg_foreign_server',
  ],
]

const liveWarningQueries: NameQuery[] = [
  [
    (names) => `changes of unlogged tables are not replicated: ${names}`,
    `select format('%I.%I', nspname, relname) as name from pg_class join pg_namespace on pg_namespace.oid = relnamespace
     where relkind = 'r' and relpersistence = 'u' and nspname !~ '^pg_'`,
  ],
  [
    (names) => `materialized views are not refreshed after the first copy: ${names}`,
    `select format('%I.%I', nspname, relname) as name from pg_class join pg_namespace on pg_namespace.oid = relnamespace
     where relkind = 'm'`,
  ],
  [
    () => 'changes of large objects are not replicated',
    `select 'large objects' as name where exists (select from pg_largeobject_metadata)`,
  ],
]

const leaves = replicatedTables.replace("in ('r', 'p') and not relispartition", "= 'r'")

const liveProblemQueries: NameQuery[] = [
  [
    (names) => `tables without a primary key need "alter table … replica identity full" at the source: ${names}`,
    `select format('%I.%I', nspname, relname) as name from ${leaves}
       and (relreplident = 'n' or relreplident = 'd' and not exists (
         select from pg_index where indrelid = pg_class.oid and indisprimary))`,
  ],
  [
    (names) => `tables with forced row-level security cannot be replicated: ${names}`,
    `select format('%I.%I', nspname, relname) as name from ${leaves} and relforcerowsecurity`,
  ],
]

/** Without a replica identity, a publication would make updates fail at the source itself. */
async function findLiveProblems(query: SourceQuery, importId: string): Promise<string[]> {
  const [server] = await query<{ level: string; mayReplicate: boolean; standby: boolean; free: number }>(
    `select current_setting('wal_level') as level, pg_is_in_recovery() as standby,
       (select rolsuper or rolreplication or exists (
          select from pg_roles granted where granted.rolname in ('rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin')
            and pg_has_role(current_user, granted.oid, 'member'))
        from pg_roles where rolname = current_user) as "mayReplicate",
       current_setting('max_replication_slots')::int
         - (select count(*)::int from pg_replication_slots where slot_name <> $1) as free`,
    [replicationName(importId)],
  )
  const { level, mayReplicate, standby, free } = server!
  return [
    ...(level === 'logical' ? [] : [`the source has wal_level = ${cleanText(level)}; a live import needs logical`]),
    ...(mayReplicate ? [] : ['the user of the source needs the attribute REPLICATION']),
    ...(standby ? ['the source is a standby; a live import needs the primary'] : []),
    ...(free > 0 ? [] : ['the source has no free replication slot (max_replication_slots)']),
    ...(await findProblems(query, liveProblemQueries)),
  ]
}
