// The jobs of an import. They run in boxes without a network, as a user of their own: the source and the dump are hostile.
import { readFileSync } from 'node:fs'
import { type ImportProgress, type ImportSource, replicationName } from '../../../model/postgres/import.ts'
import { copyDatabase } from '../../../model/postgres/user.ts'
import { confineJob, missingPathCode } from '../../confine/confine.ts'
import { canConfine } from '../../confine/probe.ts'
import { ensureDirectory, ensureFile } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { driverProgram } from '../../host/program.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { programPaths } from '../confinement.ts'
import { clusterPaths } from '../paths.ts'
import { scriptCommand } from '../script.ts'
import { importRole } from '../sql/platform-role.ts'
import { ensureTools } from '../toolchain/tools.ts'
import { clusterUsers, type User } from '../users.ts'
import type { CopyState, ImportSpec, ImportTask } from './driver.ts'
import { importPaths, importUser, sourcePort } from './paths.ts'
import { cleanText } from './source.ts'

export interface JobParts {
  home: Home
  jobs: JobDriver
}

/** Prints `table|rows` for each table that is not part of an extension, in the same order everywhere. */
const countRows = `select format('select %L, count(*) from only %I.%I', format('%I.%I', nspname, relname), nspname, relname)
  from pg_catalog.pg_class join pg_catalog.pg_namespace on pg_namespace.oid = relnamespace
  where relkind = 'r' and relpersistence <> 't' and nspname !~ '^pg_' and nspname <> 'information_schema'
    and not exists (select from pg_catalog.pg_depend
      where classid = 'pg_catalog.pg_class'::pg_catalog.regclass and objid = pg_class.oid and deptype = 'e')
  order by format('%I.%I', nspname, relname) collate "C"`

/** Keeps an import from slowing down other clusters. */
const niceness = 10

/** A line of a password file of libpq. */
export function passwordLine(
  host: string,
  port: number,
  { user, password, database }: Pick<ImportSource, 'user' | 'password' | 'database'>,
): string {
  const fields = [host, String(port), database, user, password]
  return `${fields.map((field) => field.replaceAll(/[\\:]/g, '\\$&')).join(':')}\n`
}

export async function startDump(
  { home, jobs }: JobParts,
  id: string,
  spec: ImportSpec,
  task: ImportTask,
): Promise<void> {
  const { sockets, dumpJob } = importPaths(home, id)
  const { user, database } = task.source
  await startJob({ home, jobs }, id, spec, {
    name: dumpJob,
    script: 'dump.sh',
    sockets,
    port: sourcePort,
    login: { user, password: task.source.password, database },
    env: { JOBS: String(task.jobs), SLOT: task.live ? replicationName(task.id) : '' },
  })
}

export async function startRestore(
  { home, jobs }: JobParts,
  id: string,
  spec: ImportSpec,
  task: ImportTask,
  { password, schemas }: { password: string; schemas: string[] },
): Promise<void> {
  await startJob({ home, jobs }, id, spec, {
    name: importPaths(home, id).restoreJob,
    script: 'restore.sh',
    sockets: clusterPaths(home, id).sockets,
    port: spec.port,
    login: { user: importRole, password, database: copyDatabase },
    env: { JOBS: String(task.jobs), SCHEMAS: schemas.join('\n') },
  })
}

interface JobDetails {
  name: string
  script: string
  sockets: string
  port: number
  login: Pick<ImportSource, 'user' | 'password' | 'database'>
  env: Record<string, string>
}

async function startJob({ home, jobs }: JobParts, id: string, spec: ImportSpec, details: JobDetails): Promise<void> {
  const { toolchain, uid, cgroup } = spec
  const { name, script, sockets, port, login, env } = details
  const tools = await ensureTools(toolchain)
  const paths = importPaths(home, id)
  const user = await jobUser(home, uid)
  const passwords = `${paths.directory}/${name}.passwords`
  ensureDirectory(paths.directory, { mode: 0o711 })
  ensureDirectory(paths.work, { mode: 0o700, uid: user?.uid, gid: user?.gid })
  ensureFile(passwords, passwordLine(sockets, port, login), { mode: 0o600, uid: user?.uid, gid: user?.gid })
  const command = await confineJob(home, scriptCommand(`postgres/import/${script}`, tools, paths.work), {
    user,
    readable: [...programPaths(toolchain), sockets, passwords],
    writable: [paths.work],
  })
  await jobs.ensureJob(name, {
    command,
    env: {
      PGHOST: sockets,
      PGPORT: String(port),
      PGUSER: login.user,
      PGDATABASE: login.database,
      PGPASSFILE: passwords,
      PGAPPNAME: 'berth-import',
      PGCONNECT_TIMEOUT: '30',
      COUNT_ROWS: countRows,
      REPORT: readFileSync(driverProgram('postgres/import/report.pl'), 'utf8'),
      ...env,
    },
    niceness,
    cgroup,
  })
}

/** Without namespaces, only the user of the server can enter the directory of its socket. */
async function jobUser(home: Home, uid: number | undefined): Promise<User | undefined> {
  const { server } = await clusterUsers(uid)
  return (await canConfine()) ? importUser(home, server) : server
}

const progressLines = 50
/** The size of the copy is what the job reports, unless it can be measured. */
export async function inspectCopy(jobs: JobDriver, name: string, measure?: () => Promise<number>): Promise<CopyState> {
  const state = await jobs.inspectJob(name)
  if (state.is === 'absent') return { is: 'absent' }
  if (state.is === 'ended') {
    if (isInterrupted(state)) return { is: 'absent' }
    return state.exitCode === 0 ? { is: 'done' } : { is: 'failed', reason: reasonOf(state) }
  }
  const progress = parseProgress(jobs.readJobLog(name, progressLines))
  return { is: 'running', ...progress, ...(measure && { bytesDone: await measure() }) }
}

/** A job that was killed starts again from the beginning. */
function isInterrupted({ exitCode, signal }: JobState & { is: 'ended' }): boolean {
  return signal !== undefined || exitCode === undefined || exitCode === 128 + 9 || exitCode === restartedCode
}

/** The exit code of restore.sh when a reboot has started it a second time. */
const restartedCode = 23

export function parseProgress(log: string[]): ImportProgress {
  const lines = log.map(stripLogTime)
  const finished = lines.findLast((line) => /^finished \d+$/.test(line))
  const started = /^started (\d+) (.*)$/.exec(lines.findLast((line) => /^started \d+ /.test(line)) ?? '')
  return {
    // One process reports only what it starts.
    tablesDone: finished ? Number(finished.split(' ')[1]) : Math.max(0, Number(started?.[1] ?? 0) - 1),
    tableName: started ? cleanText(started[2]!) : null,
    bytesDone: Number(lines.findLast((line) => /^size \d{1,15}$/.test(line))?.split(' ')[1] ?? 0),
  }
}

const failures: Record<number, string> = {
  10: 'the files of the dump are gone',
  [missingPathCode]: 'the import was interrupted',
  11: 'a snapshot of the source could not be taken',
  12: 'the dump failed',
  13: 'the rows of the source could not be counted',
  20: 'the dump cannot be read',
  21: 'the restore failed',
  22: 'the copy differs from the source',
}

const reasonLines = 6

function reasonOf({ exitCode, log }: JobState & { is: 'ended' }): string {
  const summary = failures[exitCode ?? 0] ?? `the copy ended with exit code ${exitCode}`
  const lines = log
    .map((line) => cleanText(stripLogTime(line)))
    .filter((line) => line !== '' && !/^(started|finished|size) \d+/.test(line))
    .map((line) => line.replace(/pg_(dump|restore): error: |psql: error: /, ''))
    .map((line) => line.replace(/connection to server on socket "[^"]*" failed: /, ''))
    .filter((line, index, all) => line !== all[index - 1])
  return [summary, ...lines.slice(-reasonLines)].join(': ')
}
