// What is looked at in a scratch cluster: first every page, with the server stopped; then tables, indexes and what the
// owner asks, with the server closed to everybody else. Both are jobs, which run as the user of the cluster.

import { defaultDatabase, defaultUser } from '../../model/postgres/cluster.ts'
import { ensureDirectory } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { type JobDriver, type JobState, withoutTime } from '../s6/job.ts'
import { clusterPaths } from './paths.ts'
import { sessionOptions } from './sql/connection.ts'
import { superuser } from './template.ts'
import type { Toolchain } from './toolchain/toolchain.ts'
import { ensureTools } from './toolchain/tools.ts'

export interface DrillSpec {
  toolchain: Toolchain
  uid?: number | undefined
  port: number
  /** The owner's, if he has one. */
  query: string | null
  /** Files of control groups that the processes join. */
  cgroup?: string[] | undefined
}

export type PagesState = { is: 'absent' } | { is: 'running' } | { is: 'passed' } | { is: 'failed'; reason: string }

export type ContentsState =
  | Exclude<PagesState, { is: 'passed' }>
  /** Null when nothing was asked. */
  | { is: 'passed'; answer: string | null }

export interface DrillDriver {
  /** Reads every page of a server that is stopped. Nothing when it is being done or has been. */
  startPages(id: string, spec: DrillSpec): Promise<void>
  inspectPages(id: string): Promise<PagesState>
  /** Of a server that runs or is about to. */
  startContents(id: string, spec: DrillSpec): Promise<void>
  inspectContents(id: string, spec: DrillSpec): Promise<ContentsState>
  /** Ends both; what they wrote lies in the directory of the cluster and goes with it. */
  remove(id: string): Promise<void>
}

export interface DrillParts {
  home: Home
  jobs: JobDriver
}

export function drillDriver({ home, jobs }: DrillParts): DrillDriver {
  return {
    async startPages(id, spec) {
      const tools = await ensureTools(spec.toolchain)
      const command = ['/bin/sh', '-c', pagesScript, 'drill', tools, spec.toolchain.major, clusterPaths(home, id).data]
      await jobs.ensureJob(pagesJob(home, id), { command, uid: spec.uid, cgroup: spec.cgroup, niceness })
    },
    inspectPages: async (id) => stateOf(await jobs.inspectJob(pagesJob(home, id))),
    async startContents(id, spec) {
      const tools = await ensureTools(spec.toolchain)
      ensureDirectory(placeOf(home, id), { mode: 0o700, uid: spec.uid })
      const { major } = spec.toolchain
      const options = sessionOptions(major, { statementMs: 0, lockMs: 0 })
      const values = [tools, major, placeOf(home, id), spec.query ?? '', options]
      const command = ['/bin/sh', '-c', contentsScript, 'drill', ...values]
      const env = { PGHOST: clusterPaths(home, id).sockets, PGPORT: String(spec.port), PGAPPNAME: 'berth-drill' }
      await jobs.ensureJob(contentsJob(home, id), { command, env, uid: spec.uid, cgroup: spec.cgroup, niceness })
    },
    async inspectContents(id, spec) {
      const state = stateOf(await jobs.inspectJob(contentsJob(home, id)))
      if (state.is !== 'passed') return state
      return { is: 'passed', answer: spec.query === null ? null : await readAnswer(home, id, spec) }
    },
    async remove(id) {
      await jobs.removeJob(pagesJob(home, id))
      await jobs.removeJob(contentsJob(home, id))
    },
  }
}

/** The drill of one cluster must not starve the others. */
const niceness = 10

// Through the paths of the cluster, which refuse what is no id.
function contentsJob(home: Home, id: string): string {
  return clusterPaths(home, id).service.replace('pg-', 'drill-')
}

function pagesJob(home: Home, id: string): string {
  return clusterPaths(home, id).service.replace('pg-', 'drill-pages-')
}

function placeOf(home: Home, id: string): string {
  return `${clusterPaths(home, id).directory}/drill`
}

const answerBytes = 10_000
const answerMemoryKb = 1024 ** 2

/** Which part failed, and how many of its last lines say why, among those that do. */
const failures: Record<number, { what: string; lines: number; among?: RegExp }> = {
  10: { what: 'the check of every page failed', lines: 1, among: /checksum verification failed/ },
  11: { what: 'the restored server does not answer', lines: 1 },
  // The object comes first, then what is wrong with it.
  12: { what: 'the check of tables and indexes failed', lines: 3 },
  13: { what: 'the drill query failed', lines: 1 },
}

// It reads the directories of its own major only, and the client programs may be of another.
const knowsPages = `
  knows_pages() { "$tools/pg_checksums" --version 2>&1 | grep -q "(PostgreSQL) $major[^0-9]"; }`

// What it prints besides errors is a summary.
const pagesScript = `
  tools=$1 major=$2 data=$3
  ${knowsPages}
  knows_pages || exit 0
  "$tools/pg_checksums" --check --pgdata="$data" > /dev/null || exit 10`

// psql takes a text that begins with a backslash for a command of its own, which could become somebody else or start a
// program; behind a line break all of it goes to the server. The limit of the server is one that the query may lift.
// Of a long answer psql holds some rows at a time, and of long rows no more than the limit, in kilobytes, lets it.
const contentsScript = `
  tools=$1 major=$2 place=$3 query=$4 options=$5
  ${knowsPages}
  as_superuser() { PGUSER=${superuser} PGOPTIONS=$options "$@"; }
  # Not as an option, which may be more than a name: databases are named by the tenant.
  ask() { as_superuser env PGDATABASE="$1" "$tools/psql" -X -At -v ON_ERROR_STOP=1 -c "$2"; }

  tries=0
  until words=$(ask ${superuser} 'select 1' 2>&1); do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "$words"; exit 11; }
    sleep 1
  done

  # A server that sends a backup compares every page with its checksum.
  knows_pages || as_superuser "$tools/pg_basebackup" --pgdata=- --format=tar --wal-method=none --checkpoint=fast \\
    --no-manifest --no-password > /dev/null || exit 10

  if [ -x "$tools/pg_amcheck" ]; then
    as_superuser "$tools/pg_amcheck" --all --install-missing --no-password || exit 12
  else
    databases=$(ask ${superuser} 'select datname from pg_database where datallowconn') || exit 12
    IFS='
'
    for database in $databases; do
      ask "$database" 'create extension if not exists amcheck schema pg_catalog' > /dev/null || exit 12
      ask "$database" "${indexesQuery()}" > /dev/null || exit 12
      damage=$(ask "$database" "${tablesQuery()}") || exit 12
      [ -z "$damage" ] || { echo "$damage"; exit 12; }
    done
    unset IFS
  fi

  [ -n "$query" ] || exit 0
  {
    ulimit -v ${answerMemoryKb}
    PGUSER='${defaultUser}' PGDATABASE='${defaultDatabase}' PGOPTIONS='-c statement_timeout=60s' \\
      timeout -k 5 90 "$tools/psql" -X -At -v VERBOSITY=terse -v FETCH_COUNT=100 -c "
$query" < /dev/null
    echo $? > "$place/code"
  } | { head -c ${answerBytes} > "$place/answer"; cat > /dev/null; }
  read -r code < "$place/code"
  case $code in
    0) exit 0 ;;
    124 | 137) echo 'it took longer than a minute' ;;
  esac
  exit 13`

function indexesQuery(): string {
  return `select pg_catalog.bt_index_check(index => indexrelid) from pg_catalog.pg_index
    join pg_catalog.pg_class on pg_class.oid = indexrelid join pg_catalog.pg_am on pg_am.oid = relam
    where amname = 'btree' and relkind = 'i' and relpersistence = 'p' and indisready and indisvalid`
}

function tablesQuery(): string {
  return `select pg_class.oid::regclass || ' block ' || blkno || ': ' || msg from pg_catalog.pg_class
    join pg_catalog.pg_am on pg_am.oid = relam, lateral pg_catalog.verify_heapam(pg_class.oid::regclass)
    where amname = 'heap' and relkind in ('r', 't', 'm') and relpersistence = 'p' limit 1`
}

function stateOf(job: JobState): PagesState {
  if (job.is !== 'ended') return { is: job.is }
  if (job.exitCode === 0) return { is: 'passed' }
  const failure = failures[job.exitCode ?? 0]
  const words = job.log.map((line) => withoutTime(line).trim()).filter((line) => line !== '')
  if (!failure) return { is: 'failed', reason: ['the check was interrupted', ...words.slice(-1)].join(': ') }
  const telling = words.filter((line) => failure.among?.test(line))
  const reasons = (telling.length > 0 ? telling : words).slice(-failure.lines)
  return { is: 'failed', reason: [failure.what, ...reasons].join(': ') }
}

// As the user of the cluster, whose directory it lies in and who could lead somebody mightier astray.
async function readAnswer(home: Home, id: string, { uid }: DrillSpec): Promise<string> {
  const { stdout } = await run('head', ['-c', String(answerBytes), `${placeOf(home, id)}/answer`], { uid })
  // A letter may be cut through, and the database stores no zero bytes.
  const text = stdout.replace(/\ufffd+$/, '').replaceAll('\0', '')
  return text.trimEnd()
}
