import { type ImportSpec, type ImportTask, SourceError } from '../../drivers/postgres/import/driver.ts'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { cleanupStatements, type Import, type ImportSource, type importStates } from '../../model/postgres/import.ts'
import { clusterSpec } from '../../model/postgres/spec.ts'
import { unseal } from '../../model/seal.ts'
import { nowMicros } from '../../model/time.ts'
import { loadCluster } from '../../store/postgres/cluster.ts'
import {
  addImportWarning,
  allowSubscriptions,
  resetImportProgress,
  setImportAddresses,
  setImportCopied,
  setImportEnded,
  setImportFacts,
  setImportLag,
  setImportProgress,
} from '../../store/postgres/import.ts'
import { advance, type Steps, type World, wait } from '../step.ts'

const pauseSeconds = 0.5
const lagSeconds = 2
const cutoverPauseSeconds = 1
/** A source that cannot be reached is tried again for this long before anything was copied, and when cleaning up. */
const patienceSeconds = 5
const cleanupSeconds = 60
const cutoverSeconds = 120
const sequencesSeconds = 600

/** The copy and the dump share the disk with WAL, and the cluster becomes read-only at 95 %. */
const usableFraction = 0.9

export const importSteps: Steps<typeof importStates, Import> = {
  async checking(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    try {
      return await check(row, cluster, world)
    } catch (error) {
      if (!(error instanceof SourceError)) throw error
      if (error.isTransient && !isOlder(row, patienceSeconds)) return wait(2, error.message)
      return advance('failed', error.message)
    }
  },

  async dumping(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    const { imports, hosting } = world
    const [spec, task] = [specOf(cluster, hosting), taskOf(row, world)]
    await imports.ensureForwarder(cluster.id, spec, task)
    const seen = await imports.inspectDump(cluster.id)
    if (seen.is === 'failed') return advance('failed', seen.reason)
    if (seen.is === 'done') return advance('dumped', '', (tx) => resetImportProgress(tx, row.id))
    if (seen.is === 'running') {
      const needed = seen.bytesDone + (row.bytesTotal ?? 0)
      if (needed > usableBytes(cluster)) return advance('failed', tooLarge(cluster))
      return wait(pauseSeconds, 'dumping the source', (tx) => setImportProgress(tx, row.id, seen))
    }
    const refusal = await findRefusal(imports.startDump(cluster.id, spec, task))
    return refusal ? advance('failed', refusal) : wait(pauseSeconds, 'dumping the source')
  },

  async restoring(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    const { imports, hosting } = world
    const [spec, task] = [specOf(cluster, hosting), taskOf(row, world)]
    if (row.live && !(await imports.canSubscribe(cluster.id))) {
      return wait(pauseSeconds, 'waiting for the restart of the server, which enables logical replication')
    }
    const seen = await imports.inspectRestore(cluster.id)
    if (seen.is === 'failed') return advance('failed', seen.reason)
    if (seen.is === 'running') {
      return wait(pauseSeconds, 'restoring the dump', (tx) => setImportProgress(tx, row.id, seen))
    }
    if (seen.is === 'absent') {
      const refusal = await findRefusal(imports.startRestore(cluster.id, spec, task, row.extensions ?? []))
      return refusal ? advance('failed', refusal) : wait(pauseSeconds, 'restoring the dump')
    }
    if (!row.live) return advance('copied', '', (tx) => setImportCopied(tx, row.id))
    await imports.ensureForwarder(cluster.id, spec, task)
    await imports.subscribe(cluster.id, spec, task)
    return advance('subscribed', '', (tx) => setImportCopied(tx, row.id))
  },

  async live(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    const seen = await inspectLive(row, cluster, world)
    if ('unreachable' in seen) return wait(2, seen.unreachable)
    if (seen.is === 'lost') return advance('failed', seen.reason)
    return wait(lagSeconds, describeLag(seen), (tx) => setImportLag(tx, row.id, lagOf(seen)))
  },

  /** Two looks without a transaction in between show that the source has stopped writing and the copy has everything. */
  async cutover(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    const seen = await inspectLive(row, cluster, world)
    if ('is' in seen && seen.is === 'lost') return advance('failed', seen.reason)
    if ('is' in seen && isCaughtUp(seen) && seen.transaction === row.transaction) {
      return advance('caught_up', '', (tx) => setImportLag(tx, row.id, lagOf(seen)))
    }
    const problem = 'unreachable' in seen ? seen.unreachable : 'the source still writes; stop its writers first'
    if (isOlder(row, cutoverSeconds)) {
      const warning = `a cut-over was given up after ${cutoverSeconds} s: ${problem}`
      return advance('postponed', problem, (tx) => addImportWarning(tx, row.id, warning))
    }
    if ('unreachable' in seen) return wait(2, problem)
    const lag = { ...lagOf(seen), transaction: isCaughtUp(seen) ? seen.transaction : null }
    return wait(
      cutoverPauseSeconds,
      isCaughtUp(seen) ? 'waiting for the source to be quiet' : describeLag(seen),
      (tx) => setImportLag(tx, row.id, lag),
    )
  },

  async finishing(row, world) {
    const cluster = await loadCluster(world.db, row.clusterId)
    if (cluster?.state !== 'ready') return advance('failed', gone(cluster))
    const { imports } = world
    let warning: string | undefined
    if (row.live) {
      const unread = await copySequences(row, cluster, world)
      if (unread) return isOlder(row, sequencesSeconds) ? advance('failed', unread) : wait(2, unread)
      await imports.unsubscribe(cluster.id)
      const cleaned = await cleanSource(row, cluster, world)
      if ('pending' in cleaned) return wait(2, cleaned.pending)
      warning = cleaned.warning
    }
    const refusal = await findRefusal(imports.replaceTarget(cluster.id, row.database))
    if (refusal) return advance('failed', refusal)
    await imports.dropCopy(cluster.id)
    await imports.remove(cluster.id)
    return advance('finished', '', async (tx) => {
      if (warning) await addImportWarning(tx, row.id, warning)
      await setImportEnded(tx, row.id)
    })
  },

  failing: cleanUp,
  canceling: cleanUp,
}

async function check(row: Import, cluster: Cluster, world: World) {
  const { db, imports, hosting, postgres } = world
  const target = await imports.findTargetProblem(cluster.id, row.database)
  if (target) return advance('failed', target)
  const addresses = row.addresses ?? (await imports.resolve(sourceOf(row, world)))
  if (!row.addresses) await setImportAddresses(db, row.id, addresses)
  const [spec, task] = [specOf(cluster, hosting), taskOf({ ...row, addresses }, world)]
  await imports.ensureForwarder(cluster.id, spec, task)
  const facts = await imports.inspectSource(cluster.id, spec, task)
  const offered = await postgres.extensions.list(cluster.id, row.database)
  const problems = [
    ...facts.problems,
    ...facts.extensions.filter(({ name }) => !isOffered(cluster, offered, name)).map(({ name }) => missing(name)),
    ...(facts.bytes > usableBytes(cluster) ? [tooLarge(cluster)] : []),
  ]
  if (problems.length > 0) return advance('failed', problems.join('; '))
  return advance('checked', '', async (tx) => {
    await setImportFacts(tx, row.id, facts)
    if (row.live) await allowSubscriptions(tx, cluster.id)
  })
}

function isOffered(cluster: Cluster, offered: { name: string }[], name: string): boolean {
  if (!cluster.postgisEnabled && /^(postgis|address_standardizer)/.test(name)) return false
  return offered.some((extension) => extension.name === name)
}

function missing(name: string): string {
  return `the source uses the extension ${name}, which this cluster does not have`
}

function usableBytes({ diskSizeGb }: Cluster): number {
  return diskSizeGb * 1024 ** 3 * usableFraction
}

function tooLarge({ diskSizeGb }: Cluster): string {
  return `the source is too large for the disk of ${diskSizeGb} GB; use a cluster with a larger disk`
}

function gone(cluster: Cluster | undefined): string {
  return `the cluster is ${cluster?.state ?? 'gone'}`
}

function isOlder({ stateSince }: Import, seconds: number): boolean {
  return nowMicros() - stateSince > BigInt(seconds) * 1_000_000n
}

function specOf(cluster: Cluster, hosting: World['hosting']): ImportSpec {
  return clusterSpec(cluster, hosting)
}

function sourceOf({ source }: Import, { encryptionKey }: World): ImportSource {
  return JSON.parse(unseal(encryptionKey, source!).toString())
}

function taskOf(row: Import, world: World): ImportTask {
  const { id, jobs, live, addresses } = row
  return { id, jobs, live, addresses: addresses ?? [], source: sourceOf(row, world) }
}

/** The reason if the work is refused for good; a source that does not answer is tried again later. */
async function findRefusal(work: Promise<void>): Promise<string | undefined> {
  try {
    await work
    return undefined
  } catch (error) {
    if (error instanceof SourceError && !error.isTransient) return error.message
    throw error
  }
}

/** Whatever the source answers, the copy stays: its owner may repair the source, cut over or cancel. */
async function inspectLive(row: Import, cluster: Cluster, world: World) {
  const { imports, hosting } = world
  const [spec, task] = [specOf(cluster, hosting), taskOf(row, world)]
  try {
    await imports.ensureForwarder(cluster.id, spec, task)
    return await imports.inspectLive(cluster.id, spec, task)
  } catch (error) {
    if (error instanceof SourceError) return { unreachable: error.message }
    throw error
  }
}

interface Lag {
  lagBytes: number
  lagSeconds: number
  errors: number
  transaction: string | null
}

function isCaughtUp({ lagBytes, transaction }: Lag): boolean {
  return lagBytes === 0 && transaction !== null
}

function lagOf({ lagBytes, lagSeconds: seconds, transaction }: Lag) {
  return { bytes: lagBytes, seconds, transaction }
}

function describeLag({ lagBytes, lagSeconds: seconds, errors }: Lag): string {
  if (lagBytes === 0) return 'in sync with the source'
  const failures = errors > 0 ? `; changes could not be applied ${errors} times, the log of the cluster says why` : ''
  return `${lagBytes} bytes and ${seconds.toFixed(1)} s behind the source${failures}`
}

/** Returns why the source does not answer, if so. */
async function copySequences(row: Import, cluster: Cluster, world: World) {
  const { imports, hosting } = world
  const [spec, task] = [specOf(cluster, hosting), taskOf(row, world)]
  try {
    await imports.ensureForwarder(cluster.id, spec, task)
    await imports.copySequences(cluster.id, spec, task)
    return undefined
  } catch (error) {
    if (error instanceof SourceError) return `the values of sequences could not be read: ${error.message}`
    throw error
  }
}

/** A slot that stays behind would fill the disk of the source, so its owner is told how to drop it. */
async function cleanSource(row: Import, cluster: Cluster, world: World) {
  const { imports, hosting } = world
  const [spec, task] = [specOf(cluster, hosting), taskOf(row, world)]
  try {
    await imports.ensureForwarder(cluster.id, spec, task)
    await imports.cleanSource(cluster.id, spec, task)
    return {}
  } catch (error) {
    if (!(error instanceof SourceError)) throw error
    const problem = `the replication slot could not be dropped: ${error.message}`
    if (!isOlder(row, cleanupSeconds)) return { pending: problem }
    return { warning: `${problem}; run at the source: ${cleanupStatements(row.id)}` }
  }
}

async function cleanUp(row: Import, world: World) {
  const { imports } = world
  const cluster = await loadCluster(world.db, row.clusterId)
  let warning: string | undefined
  if (cluster && cluster.directPort !== null) {
    await imports.stopJobs(cluster.id)
    if (cluster.state === 'ready') await imports.dropCopy(cluster.id)
    // The server of a cluster that is being deleted may not run any more.
    else await imports.dropCopy(cluster.id).catch(() => undefined)
    // Facts are recorded before anything is created at the source.
    const cleaned = row.live && row.extensions !== null ? await cleanSource(row, cluster, world) : {}
    if ('pending' in cleaned) return wait(2, cleaned.pending)
    warning = cleaned.warning
    await imports.remove(cluster.id)
  }
  return advance('cleaned', '', async (tx) => {
    if (warning) await addImportWarning(tx, row.id, warning)
    await setImportEnded(tx, row.id)
  })
}
