// Restores the records of clusters and backups from the repository after the state database is lost.
import type { BackupDescription } from '../../drivers/repository/driver.ts'
import { requireCaller, requireClusterWriter } from '../../model/account/caller.ts'
import { slugPattern } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { notFound, unauthorized } from '../../model/errors.ts'
import {
  clusterNamePattern,
  generateClusterName,
  type PostgresMajor,
  poolModes,
  postgresMajors,
  type RecordedToolchain,
} from '../../model/postgres/cluster.ts'
import { presentQuery } from '../../model/postgres/drill.ts'
import { findPlan } from '../../model/postgres/plan.ts'
import { findOrg, insertOrgOnce } from '../../store/account/org.ts'
import { findCaller } from '../../store/account/token.ts'
import {
  type AdoptedCluster,
  insertAdoptedBackup,
  insertAdoptedCluster,
  insertAdoptedEpoch,
  listKnownClusters,
} from '../../store/postgres/adopt.ts'
import { listWindows } from '../../store/postgres/archive.ts'
import { type LiveContext, withDeadline } from '../context.ts'
import { readEpoch } from './adopt-epoch.ts'

export interface Adoption {
  adopted: { id: string; name: string; backups: number; windows: number }[]
  /** The number of clusters in the repository that have a record already. */
  known: number
  /** Clusters that cannot be adopted. */
  unusable: { id: string; reason: string }[]
}

/** Adopts each cluster in a transaction of its own, so that a repetition continues after a timeout or a crash. */
export async function adoptClusters(ctx: LiveContext, orgSlug: string | undefined): Promise<Adoption> {
  const caller = requireCaller(await findCaller(ctx.db, ctx.tokenHash))
  requireClusterWriter(caller)
  if (caller.kind !== 'root') throw unauthorized('only a root token may adopt clusters')
  if (orgSlug !== undefined && !(await findSlug(ctx, caller, orgSlug))) throw notFound('organization not found')
  return withDeadline(adoptAll(ctx, caller, orgSlug), 'the repository')
}

const slugRegExp = new RegExp(slugPattern)

async function findSlug({ db }: LiveContext, caller: Caller, slug: string) {
  return slugRegExp.test(slug) ? findOrg(db, caller, slug) : undefined
}

async function adoptAll(ctx: LiveContext, caller: Caller, orgSlug: string | undefined): Promise<Adoption> {
  const ids = await ctx.repository.listClusters()
  const known = await listKnownClusters(ctx.db, ids)
  const adoption: Adoption = { adopted: [], known: known.size, unusable: [] }
  for (const id of ids.filter((each) => !known.has(each))) {
    const result = await adoptOne(ctx, caller, id, orgSlug)
    if (typeof result === 'string') adoption.unusable.push({ id, reason: result })
    else adoption.adopted.push(result)
  }
  return adoption
}

/** Returns the adopted cluster, or the reason why it cannot be adopted. */
async function adoptOne(ctx: LiveContext, caller: Caller, id: string, orgSlug: string | undefined) {
  const found = await readDescriptions(ctx, id).catch((error: Error) => error.message)
  if (typeof found === 'string') return found
  const { described, drillQuery, retentionDays, pinned } = found
  const newest = described.at(-1)
  if (!newest) return 'it has no completed backup'
  const major = postgresMajors.find((known) => known === newest.pgMajor)
  if (!major) return `it was made by PostgreSQL ${newest.pgMajor}, which is not supported`
  const { toolchain, note } = await chooseToolchain(ctx, major, newest)
  const settings = settingsOf(ctx, newest)
  const epochs = await readEpochs(ctx, described, pinned)
  const backups = epochs.flatMap((epoch) => epoch.backups)
  const slug = orgSlug ?? (slugRegExp.test(newest.orgSlug) ? newest.orgSlug : 'personal')
  await ctx.db.transaction(async (tx) => {
    await insertOrgOnce(tx, slug, slug)
    const org = (await findOrg(tx, caller, slug))!
    const createdAt = described[0]!.startedAt
    const facts = { id, orgId: org.id, pgMajor: major, toolchain, drillQuery, retentionDays, createdAt }
    const cluster: AdoptedCluster = { ...settings, ...facts }
    if (!(await insertAdoptedCluster(tx, cluster, note))) return
    for (const backup of backups) await insertAdoptedBackup(tx, id, backup)
    for (const { epoch } of epochs) if (epoch) await insertAdoptedEpoch(tx, id, epoch)
  })
  const windows = await listWindows(ctx.db, id)
  return { id, name: settings.name, backups: backups.length, windows: windows.length }
}

async function readDescriptions({ repository }: LiveContext, id: string) {
  const described = await repository.listBackups(id)
  const description = await repository.findDescription(id)
  const days = description?.retentionDays
  return {
    described,
    drillQuery: presentQuery(description?.drillQuery),
    // The file may have been changed by hand.
    retentionDays: Number.isInteger(days) && days! > 0 ? days! : null,
    pinned: new Set(description?.pinned),
  }
}

async function readEpochs({ repository }: LiveContext, described: BackupDescription[], pinned: Set<string>) {
  const byEpoch = Map.groupBy(described, ({ epoch }) => epoch)
  return Promise.all([...byEpoch.values()].map((descriptions) => readEpoch(repository, descriptions, pinned)))
}

/** Chooses the installation the cluster was created with; if it was lost with the home, another one of the same major. */
async function chooseToolchain({ hosting }: LiveContext, major: PostgresMajor, { settings }: BackupDescription) {
  const recorded = settings.toolchain as RecordedToolchain | undefined
  const bin = recorded?.bin ?? 'its installation'
  if (recorded?.major === major && hosting.isInstalled(recorded)) {
    return { toolchain: recorded, note: 'found in the repository' }
  }
  const toolchain = await hosting.findToolchain(major)
  return { toolchain, note: `found in the repository; ${bin} is gone, so it uses PostgreSQL ${toolchain.version}` }
}

/** Uses the defaults of a new cluster for settings that the description lacks, because another version wrote it. */
function settingsOf({ settings: platform }: LiveContext, { clusterName, settings }: BackupDescription) {
  const { plan, diskSizeGb, region, poolMode } = settings
  return {
    name: clusterNamePattern.test(clusterName) ? clusterName : generateClusterName(),
    plan: (typeof plan === 'string' && findPlan(plan)?.name) || 'basic',
    diskSizeGb: Number.isInteger(diskSizeGb) && Number(diskSizeGb) > 0 ? Number(diskSizeGb) : 10,
    region: typeof region === 'string' ? region : platform.defaultRegion,
    postgisEnabled: settings.postgisEnabled === true,
    poolMode: poolModes.find((mode) => mode === poolMode) ?? 'session',
    synchronousArchive: settings.synchronousArchive === true,
  }
}
