// Problems of the disk and of the files of a cluster, which its server may not report or not survive.
import { isDiskFull } from '../../model/disk-full.ts'
import { type Cluster, degraded, type Health } from '../../model/postgres/cluster.ts'
import { recoverHint } from '../../model/postgres/recover.ts'
import { isRestorable } from '../../store/postgres/restore-plan.ts'
import type { World } from '../step.ts'

/** With less free space, the next WAL segments of a few clusters do not fit. */
const minFreeBytes = 64 * 1024 ** 2

/** Reports a running server without its files too: it would lose what it writes. */
export async function findLostData({ id }: Cluster, { db, postgres }: World): Promise<Health | undefined> {
  const problem = postgres.data.findProblem(id)
  if (problem === undefined) return undefined
  const advice = (await isRestorable(db, id)) ? recoverHint(id) : 'there is no backup to recover it from'
  return { status: 'down', reason: `${problem}; ${advice}` }
}

/** A full disk affects every cluster, so each of them says so. */
export async function findDiskProblem(world: World): Promise<Health | undefined> {
  const reason = await findFullDisk(world)
  return reason === undefined ? undefined : degraded(reason)
}

async function findFullDisk({ hosting, repository }: World): Promise<string | undefined> {
  const home = await hosting.freeBytes()
  if (home < minFreeBytes) return `the disk of the platform is full (${inMegabytes(home)} free)`
  const kept = await repository.freeBytes()
  return kept < minFreeBytes ? `the disk of the repository is full (${inMegabytes(kept)} free)` : undefined
}

function inMegabytes(bytes: number): string {
  return `${Math.floor(bytes / 1024 ** 2)} MB`
}

/** Errors with which a server does not start because of missing or damaged files. */
const damagedFiles = [
  /could not (open|read|access|stat|find) (file|directory|the database system)/,
  /could not locate (a valid|required) checkpoint record/,
  /invalid (primary |secondary )?checkpoint record/,
  /incorrect checksum in control file/,
  /is not a valid data directory/,
  /(database files|control file) (are|is) incompatible|does not appear to be valid/,
  /unexpected pageaddr|could not locate checkpoint/,
]

/** Says why a server does not run, from its last words, and what to do about it. */
export async function explainDown(cluster: Cluster, world: World, error: string, log: string[]): Promise<string> {
  const full = (await findFullDisk(world)) ?? (log.some(isDiskFull) ? 'the disk is full' : undefined)
  if (full !== undefined) return full
  const last = error || log.at(-1) || ''
  const isDamaged = log.some((line) => /\b(FATAL|PANIC): /.test(line) && damagedFiles.some((known) => known.test(line)))
  return isDamaged && (await isRestorable(world.db, cluster.id)) ? `${last}; ${recoverHint(cluster.id)}` : last
}
