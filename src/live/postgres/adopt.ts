// Restores the records of clusters and backups from the repository after the state database is lost.
import type { BackupDescription, ClusterDescription } from '../../drivers/repository/driver.ts'
import { isOperator, requireCaller, requireClusterWriter } from '../../model/account/caller.ts'
import { slugPattern } from '../../model/account/org.ts'
import type { Caller } from '../../model/account/token.ts'
import { describeError, notFound, unauthorized, unavailable } from '../../model/errors.ts'
import {
  clusterNamePattern,
  generateClusterName,
  type PostgresMajor,
  poolModes,
  postgresMajors,
  type RecordedToolchain,
} from '../../model/postgres/cluster.ts'
import { presentQuery } from '../../model/postgres/drill.ts'
import { describeLogDamage } from '../../model/postgres/log-damage.ts'
import { findPlan } from '../../model/postgres/plan.ts'
import { needsOf } from '../../model/postgres/spec.ts'
import { findOrg, insertOrgOnce } from '../../store/account/org.ts'
import { findCaller } from '../../store/account/token.ts'
import {
  type AdoptedCluster,
  insertAdoptedBackup,
  insertAdoptedCluster,
  insertAdoptedEpoch,
  listKnownClusters,
} from '../../store/postgres/adopt.ts'
import { recordDamage } from '../../store/postgres/damage.ts'
import { listWindows } from '../../store/postgres/stretch.ts'
import type { LiveContext } from '../context.ts'
import { readBase } from './adopt-base.ts'
import { type ReadEpoch, readEpoch } from './adopt-epoch.ts'
import { type AdoptedResult, type Adoption, startAdoption } from './adopt-run.ts'

/** Requests wait this long for the result, so that a small repository needs no second request. */
const patienceMs = 2000

/** Starts the adoption unless it runs. A repetition continues after a crash: each cluster has a transaction of its own. */
export async function adoptClusters(ctx: LiveContext, orgSlug: string | undefined): Promise<Adoption> {
  const caller = await requireRoot(ctx)
  if (orgSlug !== undefined && !(await findSlug(ctx, caller, orgSlug))) throw notFound('organization not found')
  const adoption = startAdoption(ctx.adoption, (current) => adoptAll(ctx, caller, orgSlug, current))
  await waitFor(ctx.adoption.finished)
  if (adoption.error !== null) throw unavailable(`the adoption failed: ${adoption.error}`)
  return adoption
}

/** The newest adoption since the control plane was started. */
export async function getAdoption(ctx: LiveContext): Promise<Adoption> {
  await requireRoot(ctx)
  const adoption = ctx.adoption.current
  if (!adoption) throw notFound('no adoption was started since the control plane was')
  return adoption
}

async function requireRoot(ctx: LiveContext): Promise<Caller> {
  const caller = requireCaller(await findCaller(ctx.db, ctx.tokenHash))
  requireClusterWriter(caller)
  if (!isOperator(ctx, caller)) throw unauthorized('only a root token may adopt clusters')
  return caller
}

async function waitFor(finished: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, patienceMs)
  })
  await Promise.race([finished, timeout])
  clearTimeout(timer)
}

const slugRegExp = new RegExp(slugPattern)

async function findSlug({ db }: LiveContext, caller: Caller, slug: string) {
  return slugRegExp.test(slug) ? findOrg(db, caller, slug) : undefined
}

async function adoptAll(ctx: LiveContext, caller: Caller, orgSlug: string | undefined, adoption: Adoption) {
  const ids = await ctx.repository.listClusters()
  const known = await listKnownClusters(ctx.db, ids)
  const unknown = ids.filter((each) => !known.has(each))
  adoption.known = known.size
  adoption.total = unknown.length
  for (const id of unknown) {
    const result = await adoptOne(ctx, caller, id, orgSlug).catch(describeError)
    if (typeof result === 'string') adoption.unusable.push({ id, reason: result })
    else adoption.adopted.push(result)
    adoption.done++
  }
}

/** Returns the adopted cluster, or the reason why it cannot be adopted. */
async function adoptOne(
  ctx: LiveContext,
  caller: Caller,
  id: string,
  orgSlug: string | undefined,
): Promise<AdoptedResult | string> {
  const found = await readDescriptions(ctx, id)
  const { described, description, problems } = found
  const known = described.at(-1) ?? factsOf(description)
  if (!known) return [...problems, 'it has no completed backup'].join('; ')
  const major = postgresMajors.find((each) => each === known.pgMajor)
  if (!major) return `it was made by PostgreSQL ${known.pgMajor}, which is not supported`
  const epochs = await readEpochs(ctx, id, found)
  if (described.length === 0 && !epochs.some(({ epoch }) => epoch)) return problems.join('; ')
  const { toolchain, note } = await chooseToolchain(ctx, major, known)
  const settings = settingsOf(ctx, known)
  const backups = epochs.flatMap((epoch) => epoch.backups)
  const slug = orgSlug ?? (slugRegExp.test(known.orgSlug) ? known.orgSlug : 'personal')
  await ctx.db.transaction(async (tx) => {
    await insertOrgOnce(tx, slug, slug)
    const org = (await findOrg(tx, caller, slug))!
    const createdAt = description?.createdAt ?? described[0]!.startedAt
    const choices = {
      drillQuery: presentQuery(description?.drillQuery),
      retentionDays: description?.retentionDays ?? null,
      maintenanceWindow: description?.maintenanceWindow ?? null,
    }
    const facts = { id, orgId: org.id, pgMajor: major, toolchain, createdAt, ...choices }
    const cluster: AdoptedCluster = { ...settings, ...facts }
    if (!(await insertAdoptedCluster(tx, cluster, [note, ...problems].join('; ')))) return
    for (const backup of backups) await insertAdoptedBackup(tx, id, backup)
    for (const { epoch } of epochs) if (epoch) await insertAdoptedEpoch(tx, id, epoch)
    for (const { label, damage } of backups) {
      if (damage !== null) await recordDamage(tx, { backup: { clusterId: id, label }, reason: damage })
    }
  })
  const windows = await listWindows(ctx.db, id)
  return { id, name: settings.name, backups: backups.length, windows: windows.length, problems }
}

interface Descriptions {
  /** Oldest first. */
  described: BackupDescription[]
  description: ClusterDescription | undefined
  /** Backups that were exchanged or changed. */
  damaged: Map<string, string>
  problems: string[]
}

async function readDescriptions({ repository }: LiveContext, id: string): Promise<Descriptions> {
  const described = await repository.listBackups(id)
  const problems = await repository.listUnusableBackups(id)
  const description = await repository.findDescription(id).catch((error: Error) => {
    problems.push(error.message)
    return undefined
  })
  const damaged = new Map<string, string>()
  for (const { label } of described) {
    const damage = await repository.findForeignBackup(id, label)
    if (damage === undefined) continue
    damaged.set(label, damage)
    problems.push(`backup ${label} is damaged: ${damage}`)
  }
  return { described, description, damaged, problems }
}

/** What recreates the cluster: the newest backup, or the description of a cluster without one. */
type Facts = Pick<BackupDescription, 'clusterName' | 'orgSlug' | 'pgMajor' | 'settings'>

function factsOf(description: ClusterDescription | undefined): Facts | undefined {
  const { clusterName, orgSlug, pgMajor, settings, epochs } = description ?? {}
  if (clusterName === undefined || orgSlug === undefined || pgMajor === undefined || settings === undefined)
    return undefined
  return epochs?.some(({ base }) => base) ? { clusterName, orgSlug, pgMajor, settings } : undefined
}

/** Adds to the problems what is wrong with them. An epoch without an own backup may depend on that of a parent. */
async function readEpochs({ repository }: LiveContext, id: string, found: Descriptions): Promise<ReadEpoch[]> {
  const { described, description, damaged, problems } = found
  const pinned = new Set(description?.pinned)
  const epochs: ReadEpoch[] = []
  for (const descriptions of Map.groupBy(described, ({ epoch }) => epoch).values())
    epochs.push(await readEpoch(repository, descriptions, pinned, damaged))
  for (const each of description?.epochs ?? []) {
    const { base, epoch } = each
    if (!base || epochs.some((one) => one.epoch?.epoch === epoch)) continue
    const read = await readBase(repository, id, { ...each, base })
    if (typeof read === 'string') problems.push(read)
    else epochs.push(read)
  }
  for (const { damage } of epochs)
    if (damage) problems.push(`its write-ahead log is damaged: ${describeLogDamage(damage)}`)
  const changed = new Set(description?.epochs?.filter((each) => each.isClockChanged).map((each) => each.epoch))
  if (changed.size > 0)
    problems.push('its clock was changed, so that it cannot be restored to a time before its deletion')
  return epochs.map((each) => {
    const isChanged = each.epoch !== undefined && changed.has(each.epoch.epoch)
    return isChanged ? { ...each, epoch: { ...each.epoch!, latestAt: null } } : each
  })
}

/** Chooses the installation the cluster was created with; if it was lost with the home, another one of the same major. */
async function chooseToolchain({ hosting }: LiveContext, major: PostgresMajor, { settings }: Facts) {
  const recorded = settings.toolchain as RecordedToolchain | undefined
  const bin = recorded?.bin ?? 'its installation'
  if (recorded?.major === major && hosting.isInstalled(recorded)) {
    return { toolchain: recorded, note: 'found in the repository' }
  }
  const postgisEnabled = settings.postgisEnabled === true
  const needs = needsOf({ postgisEnabled, extensions: extensionsOf(settings), toolchain: recorded ?? null })
  const toolchain = await hosting.findToolchain(major, needs)
  return { toolchain, note: `found in the repository; ${bin} is gone, so it uses PostgreSQL ${toolchain.version}` }
}

function extensionsOf({ extensions }: Facts['settings']): string[] {
  return Array.isArray(extensions) ? extensions.filter((name) => typeof name === 'string') : []
}

/** Uses the defaults of a new cluster for settings that the description lacks, because another version wrote it. */
function settingsOf({ settings: platform }: LiveContext, { clusterName, settings }: Facts) {
  const { plan, diskSizeGb, region, poolMode } = settings
  return {
    name: clusterNamePattern.test(clusterName) ? clusterName : generateClusterName(),
    plan: (typeof plan === 'string' && findPlan(plan)?.name) || 'basic',
    diskSizeGb: Number.isInteger(diskSizeGb) && Number(diskSizeGb) > 0 ? Number(diskSizeGb) : 10,
    region: typeof region === 'string' ? region : platform.defaultRegion,
    postgisEnabled: settings.postgisEnabled === true,
    extensions: extensionsOf(settings),
    poolMode: poolModes.find((mode) => mode === poolMode) ?? 'session',
    synchronousArchive: settings.synchronousArchive === true,
  }
}
