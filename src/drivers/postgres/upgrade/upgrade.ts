// Upgrades the data directory of a stopped cluster to a newer major version. All of it is one job, which runs in a box of
// its own as the user of the server: pg_upgrade, the objects and rights of the platform, ANALYZE and the checks.
import { existsSync, renameSync } from 'node:fs'
import { isDiskFull } from '../../../model/disk-full.ts'
import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import { type UpgradeStage, upgradeStages } from '../../../model/postgres/upgrade.ts'
import { confineJob } from '../../confine/confine.ts'
import { canConfine } from '../../confine/probe.ts'
import { ensureDirectory } from '../../host/atomic-file.ts'
import { readTextIfPresent } from '../../host/file.ts'
import type { Home } from '../../host/home.ts'
import { isRoot } from '../../host/process.ts'
import { emptyTrash, moveToTrash } from '../../host/trash.ts'
import { inspectUntrustedFile, readUntrustedFile } from '../../host/untrusted-file.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { programPaths } from '../confinement.ts'
import { type ClusterPaths, clusterPaths } from '../paths.ts'
import { refusalCommand } from '../restore/copy-command.ts'
import { scriptCommand } from '../script.ts'
import { sessionOptions } from '../sql/connection.ts'
import { superuser } from '../sql/platform-role.ts'
import { grantPoolerConnect, largeObjects, lookupFunction, lookupGrants, shareTrigger } from '../sql/rights.ts'
import { initdbOptions } from '../template.ts'
import { ensureTools, hasLibrary } from '../toolchain/tools.ts'
import { clusterUsers } from '../users.ts'
import type { UpgradeDriver, UpgradeJobState, UpgradeSpec } from './driver.ts'

export interface UpgradeParts {
  home: Home
  jobs: JobDriver
}

export function upgradeDriver(parts: UpgradeParts): UpgradeDriver {
  const { home, jobs } = parts
  return {
    startUpgrade: (id, spec) => startUpgrade(parts, id, spec),
    inspectUpgrade: (id, spec) => inspectUpgrade(parts, id, spec),
    stopUpgrade: (id) => jobs.removeJob(clusterPaths(home, id).upgradeJob),
    async removeUpgrade(id) {
      const paths = clusterPaths(home, id)
      await jobs.removeJob(paths.upgradeJob)
      if (!existsSync(directoryOf(paths))) return
      moveToTrash(home, directoryOf(paths))
      emptyTrash(home)
    },
  }
}

const niceness = 10
const logLines = 50

/** The directory of the job, which belongs to the user of the cluster. The server does not see it. */
function directoryOf(paths: ClusterPaths): string {
  return `${paths.directory}/upgrade`
}

/**
 * pg_upgrade creates the databases of the old cluster as copies of template0 and then what pg_dump finds in them. It does
 * not find the objects of the platform, so they are in template0 meanwhile, but without rights of roles, which do not exist
 * yet.
 */
function template0(old: Toolchain, target: Toolchain): string {
  // pg_upgrade expects the functions of the version that the old cluster has.
  const control = readTextIfPresent(`${old.share}/extension/pg_stat_statements.control`) ?? ''
  const version = /^default_version = '([\d.]+)'/m.exec(control)?.[1]
  const hasStatements = version !== undefined && hasLibrary(target, 'pg_stat_statements')
  const statements = hasStatements ? `\n  CREATE EXTENSION pg_stat_statements VERSION '${version}';\n` : ''
  // pg_upgrade assumes that all rows of template0 are frozen. VACUUM needs a batch of its own, after an empty line.
  return `${lookupFunction + shareTrigger + statements}\nVACUUM FREEZE;\n`
}

/** Completes a database. Repeatable. */
const rights = `
  BEGIN;
  SET LOCAL allow_system_table_mods = on;
  DELETE FROM pg_catalog.pg_init_privs WHERE classoid = 'pg_catalog.pg_proc'::regclass AND objoid IN (
    SELECT oid FROM pg_catalog.pg_proc WHERE proname IN ('lo_creat', 'lo_create', 'lo_from_bytea'));
  ${largeObjects}
  ${lookupGrants}
  COMMIT;
`

/** Tenants can copy template0, so it has the rights of the other databases, and is frozen as initdb leaves it. */
const template0Rights = `${rights}
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension WHERE extname = 'pg_stat_statements') THEN
      ALTER EXTENSION pg_stat_statements UPDATE;
    END IF;
  END $$;

VACUUM FREEZE;
`

/** Removes what the database of the platform does not have in a new cluster. Repeatable. */
const platformRights = `DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'berth_share') THEN
      ALTER EXTENSION plpgsql DROP EVENT TRIGGER berth_share;
      DROP EVENT TRIGGER berth_share;
    END IF;
  END $$;
  DROP FUNCTION IF EXISTS pg_berth.share_new();
  DROP FUNCTION IF EXISTS pg_berth.share(oid, oid);
  DROP EXTENSION IF EXISTS pg_stat_statements;
  ${lookupGrants}
  REVOKE CONNECT ON DATABASE template0 FROM PUBLIC;
  ${grantPoolerConnect('template0')};`

function isOfMajor(paths: ClusterPaths, major: string): boolean {
  return readUntrustedFile(paths.data, 'PG_VERSION', 16)?.toString().trim() === major
}

/** Moves the result to its place. Returns true if the data directory is of the new version. */
function takeResult(paths: ClusterPaths, { target }: UpgradeSpec): boolean {
  if (existsSync(paths.data)) return isOfMajor(paths, target.major)
  if (!inspectUntrustedFile(directoryOf(paths), 'data')?.isDirectory()) return false
  renameSync(`${directoryOf(paths)}/data`, paths.data)
  return true
}

async function startUpgrade({ home, jobs }: UpgradeParts, id: string, spec: UpgradeSpec): Promise<void> {
  const paths = clusterPaths(home, id)
  if (takeResult(paths, spec)) return
  const job = await jobs.inspectJob(paths.upgradeJob)
  if (job.is === 'running' || (job.is === 'ended' && !wasInterrupted(job))) return
  if (job.is === 'ended') await jobs.removeJob(paths.upgradeJob)
  if (isRoot() && !(await canConfine())) {
    // In namespaces the user of the cluster gets a name.
    const reason = 'pg_upgrade needs a user with a name, which clusters have only on hosts that can isolate them'
    return jobs.ensureJob(paths.upgradeJob, { command: refusalCommand(1, reason) })
  }
  const command = await upgradeCommand(home, paths, spec)
  ensureDirectory(directoryOf(paths), { mode: 0o700, uid: spec.uid })
  if (existsSync(paths.data)) renameSync(paths.data, `${directoryOf(paths)}/old`)
  const env = {
    SUPERUSER: superuser,
    OLD_OPTIONS: sessionOptions(spec.toolchain.major, noLimits),
    NEW_OPTIONS: sessionOptions(spec.target.major, noLimits),
    // None of them contains a space.
    INITDB_OPTIONS: initdbOptions(spec.target).join(' '),
    SQL_BEFORE: template0(spec.toolchain, spec.target),
    SQL_AFTER: rights,
    SQL_AFTER_PLATFORM: platformRights,
    SQL_AFTER_TEMPLATE0: template0Rights,
  }
  await jobs.ensureJob(paths.upgradeJob, { command, env, cgroup: spec.cgroup, niceness })
}

const noLimits = { statementMs: 0, lockMs: 0 }

async function upgradeCommand(home: Home, paths: ClusterPaths, spec: UpgradeSpec): Promise<string[]> {
  const { toolchain, target, uid } = spec
  const [tools] = [await ensureTools(target), await ensureTools(toolchain)]
  const { server, names } = await clusterUsers(uid)
  const directory = directoryOf(paths)
  const script = scriptCommand('postgres/upgrade/upgrade.sh', directory, toolchain.bin, target.bin, tools)
  return confineJob(home, script, {
    user: server,
    names,
    readable: [...new Set([...programPaths(toolchain), ...programPaths(target)])],
    writable: [directory],
  })
}

type EndedJob = Extract<JobState, { is: 'ended' }>

// The job or one of its children was killed, or a power failure undid its work. Any other failure would happen again.
function wasInterrupted({ exitCode = 0 }: EndedJob): boolean {
  return exitCode === 0 || exitCode > 128
}

async function inspectUpgrade({ home, jobs }: UpgradeParts, id: string, spec: UpgradeSpec): Promise<UpgradeJobState> {
  const paths = clusterPaths(home, id)
  const job = await jobs.inspectJob(paths.upgradeJob)
  if (job.is === 'running') return { is: 'running', stage: stageOf(jobs.readJobLog(paths.upgradeJob, logLines)) }
  if (takeResult(paths, spec)) return { is: 'done' }
  if (job.is === 'absent' || wasInterrupted(job)) return { is: 'absent' }
  return { is: 'failed', reason: explain(job) }
}

function stageOf(log: string[]): UpgradeStage {
  const named = log.map((line) => /^stage: (\w+)$/.exec(stripLogTime(line))?.[1])
  return upgradeStages.find((stage) => stage === named.findLast((name) => name !== undefined)) ?? 'checking'
}

const damagedExitCode = 21

function explain(job: EndedJob): string {
  const lines = job.log.map((line) => stripLogTime(line).trim()).filter((line) => line !== '')
  if (lines.some(isDiskFull)) return 'the disk is full'
  const last = lines.at(-1) ?? `the upgrade ended with exit code ${job.exitCode}`
  return job.exitCode === damagedExitCode ? `the upgraded cluster failed its verification: ${last}` : last
}
