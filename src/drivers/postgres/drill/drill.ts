// The checks of a restored scratch cluster: first the checksum of every page, with the server stopped; then tables,
// indexes and the query of the owner, on a server that accepts no other clients. The first runs as the user of the
// server, the second as that of its keeper.
import { defaultDatabase, defaultUser } from '../../../model/postgres/cluster.ts'
import { confineJob } from '../../confine/confine.ts'
import { ensureDirectory } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { readUntrustedFile } from '../../host/untrusted-file.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { clientConfinement, programPaths } from '../confinement.ts'
import { clusterPaths } from '../paths.ts'
import { scriptCommand } from '../script.ts'
import { sessionOptions } from '../sql/connection.ts'
import { superuser } from '../sql/platform-role.ts'
import { ensureTools } from '../toolchain/tools.ts'
import { clusterUsers } from '../users.ts'
import type { DrillDriver, DrillSpec, PagesState } from './driver.ts'

export interface DrillParts {
  home: Home
  jobs: JobDriver
}

export function drillDriver(parts: DrillParts): DrillDriver {
  const { home, jobs } = parts
  return {
    startPages: (id, spec) => startPages(parts, id, spec),
    inspectPages: async (id) => stateOf(await jobs.inspectJob(clusterPaths(home, id).drillPagesJob)),
    startContents: (id, spec) => startContents(parts, id, spec),
    async inspectContents(id, spec) {
      const state = stateOf(await jobs.inspectJob(clusterPaths(home, id).drillContentsJob))
      if (state.is !== 'passed') return state
      return { is: 'passed', answer: spec.query === null ? null : readAnswer(home, id) }
    },
    async remove(id) {
      const { drillPagesJob, drillContentsJob } = clusterPaths(home, id)
      await jobs.removeJob(drillPagesJob)
      await jobs.removeJob(drillContentsJob)
    },
  }
}

/** Keeps a drill from slowing down other clusters. */
const niceness = 10

const maxAnswerBytes = 10_000
const maxMemoryKb = 1024 ** 2

async function startPages({ home, jobs }: DrillParts, id: string, spec: DrillSpec): Promise<void> {
  const { toolchain, uid, cgroup } = spec
  const tools = await ensureTools(toolchain)
  const paths = clusterPaths(home, id)
  const { server } = await clusterUsers(uid)
  const check = scriptCommand('postgres/drill/pages.sh', tools, toolchain.major, paths.data)
  const command = await confineJob(home, check, { user: server, readable: [...programPaths(toolchain), paths.data] })
  await jobs.ensureJob(paths.drillPagesJob, { command, cgroup, niceness })
}

async function startContents({ home, jobs }: DrillParts, id: string, spec: DrillSpec): Promise<void> {
  const { toolchain, uid, cgroup } = spec
  const tools = await ensureTools(toolchain)
  const output = outputDirectory(home, id)
  const { keeper } = await clusterUsers(uid)
  ensureDirectory(output, { mode: 0o700, uid: keeper?.uid })
  const paths = clusterPaths(home, id)
  const check = scriptCommand('postgres/drill/contents.sh', tools, toolchain.major, output)
  const env = {
    PGHOST: paths.sockets,
    PGPORT: String(spec.port),
    PGAPPNAME: 'berth-drill',
    SUPERUSER: superuser,
    SUPERUSER_OPTIONS: sessionOptions(toolchain.major, { statementMs: 0, lockMs: 0 }),
    QUERY: spec.query ?? '',
    QUERY_USER: defaultUser,
    QUERY_DATABASE: defaultDatabase,
    MAX_ANSWER_BYTES: String(maxAnswerBytes),
    MAX_MEMORY_KB: String(maxMemoryKb),
  }
  const confinement = { ...clientConfinement(paths, keeper, toolchain), writable: [output] }
  const command = await confineJob(home, check, confinement)
  await jobs.ensureJob(paths.drillContentsJob, { command, env, cgroup, niceness })
}

function outputDirectory(home: Home, id: string): string {
  return `${clusterPaths(home, id).directory}/drill`
}

interface Failure {
  summary: string
  /** The number of lines at the end of the log that explain the failure. */
  lines: number
  /** Selects these lines, if any match. */
  pattern?: RegExp
}

/** Explains the exit codes of the scripts. */
const failures: Record<number, Failure> = {
  10: { summary: 'the check of every page failed', lines: 1, pattern: /checksum verification failed/ },
  11: { summary: 'the restored server does not answer', lines: 1 },
  // The first line names the object, the next ones the damage.
  12: { summary: 'the check of tables and indexes failed', lines: 3 },
  13: { summary: 'the drill query failed', lines: 1 },
}

function stateOf(job: JobState): PagesState {
  if (job.is !== 'ended') return { is: job.is }
  if (job.exitCode === 0) return { is: 'passed' }
  const failure = failures[job.exitCode ?? 0]
  const lines = job.log.map((line) => stripLogTime(line).trim()).filter((line) => line !== '')
  if (!failure) return { is: 'failed', reason: ['the check was interrupted', ...lines.slice(-1)].join(': ') }
  const matching = lines.filter((line) => failure.pattern?.test(line))
  const reasons = (matching.length > 0 ? matching : lines).slice(-failure.lines)
  return { is: 'failed', reason: [failure.summary, ...reasons].join(': ') }
}

function readAnswer(home: Home, id: string): string {
  const answer = readUntrustedFile(outputDirectory(home, id), 'answer', maxAnswerBytes)?.toString() ?? ''
  // The limit may cut a character in two, and the state database cannot store zero bytes.
  const text = answer.replace(/\ufffd+$/, '').replaceAll('\0', '')
  return text.trimEnd()
}
