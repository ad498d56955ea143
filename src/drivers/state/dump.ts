// The platform's own state in the repository, with the key that its secrets are encrypted with: together they bring back
// what a lost home knew. The dump is a job; here it is started, looked at and kept.
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { labelTime, newLabel } from '../../model/postgres/restore.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import type { Home } from '../host/home.ts'
import type { Toolchain } from '../postgres/toolchain/toolchain.ts'
import { ensureTools } from '../postgres/toolchain/tools.ts'
import type { PlatformFiles } from '../repository/platform.ts'
import { type JobDriver, withoutTime } from '../s6/job.ts'
import type { StateDatabase } from './database.ts'

export type DumpState = { is: 'absent' } | { is: 'running' } | { is: 'failed'; reason: string } | { is: 'done' }

export interface StateDumpDriver {
  /** Nothing when one runs or has ended. */
  startDump(): Promise<void>
  inspectDump(): Promise<DumpState>
  /** What was dumped appears in the repository, the oldest beyond the newest few go, and the job is removed. */
  keepDump(): Promise<void>
  /** Nothing is left of a dump that failed. */
  discardDump(): Promise<void>
  /** When the newest kept one was made. */
  findNewest(): Promise<Micros | undefined>
}

export interface StateDumpParts {
  home: Home
  jobs: JobDriver
  repository: PlatformFiles
  database: StateDatabase
  findToolchain(): Promise<Toolchain>
}

const job = 'state-dump'
const keptDumps = 7
const reasonLines = 3

export function stateDumpDriver(parts: StateDumpParts): StateDumpDriver {
  const { home, jobs, repository } = parts
  const staged = `${home.cache}/state.sql.gz`
  const names = namesOf(home)
  const listOwn = async () => (await repository.listPlatformFiles()).filter((name) => names.timeOf(name) !== undefined)
  const end = async () => {
    // The job first: without it nothing writes to the file.
    await jobs.removeJob(job)
    await rm(staged, { force: true })
  }
  return {
    startDump: () => startDump(parts, staged),
    inspectDump: () => inspectDump(jobs),
    async keepDump() {
      // Absent when whoever kept it died before the job was removed.
      if (existsSync(staged)) {
        const kept = await repository.listPlatformFiles()
        if (!kept.includes(names.key)) await repository.putPlatformFile(names.key, home.keyFile)
        await repository.putPlatformFile(names.dump(nowMicros()), staged)
      }
      for (const name of (await listOwn()).slice(0, -keptDumps)) await repository.removePlatformFile(name)
      await end()
    },
    discardDump: end,
    findNewest: async () => (await listOwn()).map(names.timeOf).at(-1),
  }
}

/**
 * A new home beside an old repository has another key. Its dumps and its key carry a mark of that key, so that they
 * neither replace nor push out those of the home before, which somebody may be about to need.
 */
function namesOf(home: Home) {
  const mark = createHash('sha256').update(readFileSync(home.keyFile)).digest('hex').slice(0, 8)
  const form = new RegExp(`^state-(.+)-${mark}\\.sql\\.gz$`)
  return {
    key: `key-${mark}`,
    dump: (at: Micros) => `state-${newLabel(at)}-${mark}.sql.gz`,
    timeOf: (name: string) => labelTime(form.exec(name)?.[1] ?? ''),
  }
}

// The last step makes it whole; a job that is repeated begins with nothing.
const dumpScript = `
  umask 077
  rm -f "$1" "$1.new" || exit 1
  "$2/pg_dump" --no-password --compress=gzip --file="$1.new" || exit 1
  mv "$1.new" "$1"`

async function startDump({ jobs, database, findToolchain }: StateDumpParts, staged: string): Promise<void> {
  const tools = await ensureTools(await findToolchain())
  await jobs.ensureJob(job, {
    command: ['/bin/sh', '-c', dumpScript, 'state-dump', staged, tools],
    env: {
      PGHOST: database.host,
      PGPORT: String(database.port),
      PGUSER: database.user,
      PGDATABASE: database.database,
      PGAPPNAME: 'berth-state-dump',
    },
    niceness: 10,
  })
}

async function inspectDump(jobs: JobDriver): Promise<DumpState> {
  const state = await jobs.inspectJob(job)
  if (state.is !== 'ended') return { is: state.is }
  if (state.exitCode === 0) return { is: 'done' }
  const words = state.log.slice(-reasonLines).map((line) => withoutTime(line).trim())
  return { is: 'failed', reason: words.join(': ') || `pg_dump ended with ${state.signal ?? state.exitCode}` }
}
