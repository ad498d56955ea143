// Dumps of the state database in the repository. With the encryption key beside them, they restore the state of a lost
// home. The dump is made by a job.
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { labelTime, newLabel } from '../../model/postgres/restore.ts'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import { type Micros, nowMicros } from '../../model/time.ts'
import type { Home } from '../host/home.ts'
import { scriptCommand } from '../postgres/script.ts'
import { ensureTools } from '../postgres/toolchain/tools.ts'
import type { PlatformFiles } from '../repository/platform.ts'
import type { JobDriver } from '../s6/driver.ts'
import { stripLogTime } from '../s6/job.ts'
import type { StateDatabase } from './database.ts'
import type { DumpState, StateDumpDriver } from './driver.ts'

export interface StateDumpParts {
  home: Home
  jobs: JobDriver
  repository: PlatformFiles
  database: StateDatabase
  findToolchain(): Promise<Toolchain>
}

const job = 'state-dump'
const maxDumps = 7
const reasonLines = 3

export function stateDumpDriver(parts: StateDumpParts): StateDumpDriver {
  const { home, jobs, repository } = parts
  const staged = `${home.cache}/state.sql.gz`
  const names = fileNames(home)
  const listDumps = async () =>
    (await repository.listPlatformFiles()).filter((name) => names.timeOf(name) !== undefined)
  const discard = async () => {
    // The job is removed first, because it writes to the file.
    await jobs.removeJob(job)
    await rm(staged, { force: true })
  }
  return {
    startDump: () => startDump(parts, staged),
    inspectDump: () => inspectDump(jobs),
    async keepDump() {
      // Absent if an earlier call was interrupted before it removed the job.
      if (existsSync(staged)) {
        const kept = await repository.listPlatformFiles()
        if (!kept.includes(names.key)) await repository.putPlatformFile(names.key, home.keyFile)
        await repository.putPlatformFile(names.dump(nowMicros()), staged)
      }
      for (const name of (await listDumps()).slice(0, -maxDumps)) await repository.removePlatformFile(name)
      await discard()
    },
    discardDump: discard,
    findNewest: async () => (await listDumps()).map(names.timeOf).at(-1),
  }
}

/**
 * A new home with an old repository has another key. Names contain a hash of the key, so that dumps of the new home do not
 * replace those of the old one, which may still be needed for its recovery.
 */
function fileNames(home: Home) {
  const keyHash = createHash('sha256').update(readFileSync(home.keyFile)).digest('hex').slice(0, 8)
  const pattern = new RegExp(`^state-(.+)-${keyHash}\\.sql\\.gz$`)
  return {
    key: `key-${keyHash}`,
    dump: (at: Micros) => `state-${newLabel(at)}-${keyHash}.sql.gz`,
    timeOf: (name: string) => labelTime(pattern.exec(name)?.[1] ?? ''),
  }
}

async function startDump({ jobs, database, findToolchain }: StateDumpParts, staged: string): Promise<void> {
  const tools = await ensureTools(await findToolchain())
  await jobs.ensureJob(job, {
    command: scriptCommand('state/dump.sh', staged, tools),
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
  const lines = state.log.slice(-reasonLines).map((line) => stripLogTime(line).trim())
  return { is: 'failed', reason: lines.join(': ') || `pg_dump ended with ${state.signal ?? state.exitCode}` }
}
