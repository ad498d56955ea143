import { type Command, InvalidArgumentError, Option } from 'commander'
import type { PostgresBackup, PostgresCluster, RestoreProgress } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { encodeSegment, request } from '../client.ts'
import { addExamples, type Cli, defaultOrg, type ProgressCli } from '../command.ts'
import { parseSeconds } from '../duration.ts'
import { CommandError, UsageError } from '../errors.ts'
import { block, type Cell, printResult, sanitize } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { isInProgress, listBackups } from './backup.ts'
import { clusterArguments, type Data, findCluster, listClusters, type OrgOptions, withClusterArgument } from './find.ts'
import { formatNoWindow, readPlatformClock } from './window.ts'

interface NewClusterOptions extends OrgOptions {
  name?: string
  wait: boolean
}

interface UndeleteOptions extends NewClusterOptions {
  acceptLoss?: boolean
}

interface RestoreOptions extends NewClusterOptions {
  backup?: string
  to?: RestoreTarget
}

export type RestoreTarget = { is: 'at'; time: string } | { is: 'ago'; seconds: number } | { is: 'latest' }

export function addRestoreCommands(postgres: Command, cli: ProgressCli): void {
  addRestore(postgres, cli)
  const fork = withNewClusterOptions(withClusterArgument(postgres.command('fork')))
    .description('copy the current state of a cluster into a new cluster')
    .action((nameOrId: string, options: NewClusterOptions) => forkCluster(cli, nameOrId, options))
  addExamples(fork, 'berth postgres fork shop', 'berth postgres fork shop --name shop-experiment')

  const undelete = postgres
    .command('undelete')
    .description('restore the final state of a deleted cluster into a new cluster')
    .argument('<cluster>', 'the id of the deleted cluster, or its name if only one deleted cluster had it')
    .option('--org <slug>', 'the organization in which the name is looked up', defaultOrg)
    .option('--accept-loss', 'restore what is intact if the end of the write-ahead log is damaged')
  withNewClusterOptions(undelete).action((nameOrId: string, options: UndeleteOptions) =>
    undeleteCluster(cli, nameOrId, options),
  )
  addExamples(undelete, 'berth postgres list --deleted', 'berth postgres undelete 0123456789abcdef --name shop')
}

function addRestore(postgres: Command, cli: ProgressCli): void {
  const restore = withNewClusterOptions(withClusterArgument(postgres.command('restore')))
    .description('restore a backup or a point in time into a new cluster; the source is not changed')
    .option('--backup <id>', 'restore the state at the end of this backup')
    .addOption(
      new Option(
        '--to <time>',
        'restore this point in time: a time with an offset, such as 5m-ago, or latest for the end of the recovery window',
      )
        .argParser(parseRestoreTarget)
        .conflicts('backup'),
    )
    .action((nameOrId: string, options: RestoreOptions) => restoreCluster(cli, nameOrId, options))
  addExamples(
    restore,
    "berth postgres restore shop --to '2026-11-15 10:02:03+01:00'",
    'berth postgres restore shop --to 1h30m-ago --name shop-before-the-accident',
    'berth postgres restore shop --to latest --no-wait',
    'berth postgres restore shop --backup 20261115-100000F',
  )
}

function withNewClusterOptions(command: Command): Command {
  return command
    .option('--name <name>', 'the name of the new cluster; generated when omitted')
    .option('--no-wait', 'return without waiting until it is ready')
}

// An offset may have no minutes, as PostgreSQL prints it for now().
const timePattern = /^(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?)(?:([Zz])|([+-]\d\d)(:?\d\d)?)$/

// Each unit at most once and in this order, so that a slip such as 5m5m-ago is not taken for a time.
const agoPattern = /^(?=\d)((?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?)-ago$/

/** Reads the form only. The platform checks whether the date exists. */
export function parseRestoreTarget(text: string): RestoreTarget {
  const nameOrId = text.trim()
  if (nameOrId === 'latest') return { is: 'latest' }
  const time = timePattern.exec(nameOrId)
  if (time) return { is: 'at', time: `${time[1]}${time[2] ?? `${time[3]}:${(time[4] ?? '00').replace(':', '')}`}` }
  const ago = agoPattern.exec(nameOrId)?.[1]
  const seconds = ago === undefined ? undefined : parseSeconds(ago)
  if (seconds !== undefined) return { is: 'ago', seconds }
  throw new InvalidArgumentError("Write a time with an offset ('2026-11-15 10:02:03+01:00'), 5m-ago, or latest.")
}

/** Limits a time relative to now to the end of the recovery window, which is a few seconds behind the clock. */
export function resolveRestoreTarget(
  target: Exclude<RestoreTarget, { is: 'at' }>,
  latest: string,
  now: number,
): { time: string; isClamped: boolean } {
  if (target.is === 'latest') return { time: latest, isClamped: false }
  const timeMs = now - target.seconds * 1000
  if (timeMs > Date.parse(latest)) return { time: latest, isClamped: true }
  return { time: new Date(timeMs).toISOString(), isClamped: false }
}

async function restoreCluster(cli: ProgressCli, nameOrId: string, options: RestoreOptions): Promise<void> {
  const { backup, to, name } = options
  if (backup === undefined && to === undefined)
    throw new UsageError('choose what to restore with --backup <id> or --to <time>')
  const path = await findCluster(cli, nameOrId, options)
  const target = to ? { pitr_time: await findTime(cli, path, to, options.wait) } : { backup_id: backup }
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', `${path}/restore`, { ...target, name })
  await followUntilReady(cli, created, options.wait)
}

async function findTime(cli: ProgressCli, path: string, target: RestoreTarget, shouldWait: boolean): Promise<string> {
  if (target.is === 'at' && !shouldWait) return target.time
  const now = await readPlatformClock(cli.session())
  const { cluster, backups } = await watchWindow(cli, path, shouldWait ? pendingWindow(target, now) : () => undefined)
  if (target.is === 'at') return target.time
  if (!cluster.recovery_window) throw new CommandError(formatNoWindow(cluster, backups))
  const { latest } = cluster.recovery_window
  const { time, isClamped } = resolveRestoreTarget(target, latest, now)
  const terminal = cli.terminal()
  if (isClamped && !terminal.json) {
    terminal.note(
      `The recovery window ends at ${latest}, which is before the requested time; restoring to the end of the window.`,
    )
  }
  return time
}

interface Source {
  cluster: PostgresCluster
  /** Listed only when there is no window, to explain why. */
  backups: PostgresBackup[]
}

function watchWindow(
  cli: ProgressCli,
  path: string,
  waitsFor: (source: Source) => string | undefined,
): Promise<Source> {
  const session = cli.session()
  const fetchSource = async () => {
    const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
    return { cluster, backups: cluster.recovery_window ? [] : (await listBackups(session, path)).data }
  }
  return pollUntil(startProgress(cli.terminal(), cli.progress), fetchSource, waitsFor)
}

// Well above the three seconds by which the window trails the clock and the second until the first backup starts.
const windowTimeoutSeconds = 10

/** The window starts with the first backup and trails the clock. On a healthy cluster, waiting resolves both. */
function pendingWindow(target: RestoreTarget, now: number): (source: Source) => string | undefined {
  const deadline = Date.now() + windowTimeoutSeconds * 1000
  // The platform's clock is read to the second, so a time within the same second is not in the future.
  const isPast = (time: number) => time < now + 1000
  return ({ cluster, backups: [newest] }) => {
    if (cluster.status !== 'ready') return undefined
    const isLate = Date.now() > deadline
    const window = cluster.recovery_window
    if (!window) {
      const isComing = newest ? isInProgress(newest) : !isLate
      return isComing ? `Cluster ${sanitize(cluster.name)} is waiting for its first backup` : undefined
    }
    const time = targetMs(target, now)
    const isComing = time !== undefined && Date.parse(window.latest) < time && isPast(time) && !isLate
    return isComing ? 'Waiting until the WAL archive reaches that time' : undefined
  }
}

/** Returns undefined for `latest`, which needs no waiting. */
function targetMs(target: RestoreTarget, now: number): number | undefined {
  if (target.is === 'latest') return undefined
  return target.is === 'at' ? Date.parse(target.time) : now - target.seconds * 1000
}

async function forkCluster(cli: ProgressCli, nameOrId: string, options: NewClusterOptions): Promise<void> {
  const path = await findCluster(cli, nameOrId, options)
  const { name } = options
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', `${path}/fork`, { name })
  await followUntilReady(cli, created, options.wait)
}

async function undeleteCluster(cli: ProgressCli, nameOrId: string, options: UndeleteOptions): Promise<void> {
  const path = `/v1/postgres/${encodeSegment(await findDeletedId(cli, nameOrId, options))}/undelete`
  const body = { name: options.name, accept_loss: options.acceptLoss }
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', path, body)
  await followUntilReady(cli, created, options.wait)
}

/** Several deleted clusters may have had the same name, because a name is free again after a deletion. */
async function findDeletedId(cli: Cli, nameOrId: string, { org }: OrgOptions): Promise<string> {
  if (/^[a-z0-9]{16}$/.test(nameOrId)) return nameOrId
  const { data } = await listClusters(cli.session(), org, true)
  const found = data.filter(({ name, deleted_at }) => name === nameOrId && deleted_at !== undefined)
  if (found.length > 1) {
    throw new UsageError(
      `several deleted clusters were named ${nameOrId}; write one of ${found.map(({ id }) => id).join(', ')}`,
    )
  }
  if (found[0]) return found[0].id
  throw new CommandError(
    `no deleted cluster ${nameOrId} in organization ${org}; "berth postgres list --deleted" shows all`,
  )
}

async function followUntilReady(cli: ProgressCli, created: Data<PostgresCluster>, shouldWait: boolean): Promise<void> {
  const terminal = cli.terminal()
  const answer = shouldWait ? await watchRestore(cli, created.data) : created
  const cluster = answer.data
  const hasFailed = shouldWait && cluster.status !== 'ready'
  if (terminal.json || !hasFailed) printResult(terminal, answer, () => formatRestored(cluster, terminal.colors))
  if (hasFailed) throw new CommandError(formatFailure(cluster))
}

/** Has no timeout, because the platform itself fails a restore that takes too long and gives the reason. */
function watchRestore(cli: ProgressCli, { id, name, organization }: PostgresCluster): Promise<Data<PostgresCluster>> {
  const session = cli.session()
  const terminal = cli.terminal()
  if (!terminal.json) terminal.note(`Restoring into cluster ${sanitize(name)} (${id}).`)
  return pollUntil(
    startProgress(terminal, cli.progress),
    () => request<Data<PostgresCluster>>(session, 'GET', `/v1/postgres/${encodeSegment(id)}`),
    ({ data: { status, restore } }) => {
      const isUnderWay = status === 'creating' || status === 'initializing'
      return isUnderWay ? formatPhase(restore, cli.progress.isTTY === true) : undefined
    },
    `The restore continues. Check its progress with: berth postgres show ${clusterArguments(name, organization.slug)}`,
  )
}

/** When lines cannot be rewritten, steps of ten percent and of a minute limit the number of lines. */
export function formatPhase(restore: RestoreProgress | undefined, isLiveLine: boolean): string {
  if (restore?.phase === 'copying') return formatCopy(restore, isLiveLine)
  if (restore?.phase === 'replaying') return formatReplay(restore, isLiveLine)
  return restore?.phase === 'finishing' || restore?.phase === 'done' ? 'finishing' : 'waiting'
}

const barColumns = 20

function formatCopy({ bytes_done, bytes_total }: RestoreProgress, isLiveLine: boolean): string {
  if (!bytes_total) return 'copying'
  const part = Math.min(1, bytes_done / bytes_total)
  if (!isLiveLine) return `copying ${formatBytes(bytes_total)}, ${Math.floor(part * 10) * 10} %`
  const filled = Math.floor(part * barColumns)
  const bar = '#'.repeat(filled) + '-'.repeat(barColumns - filled)
  return `copying ${formatPart(Math.min(bytes_done, bytes_total), bytes_total)} [${bar}] ${Math.floor(part * 100)} %`
}

/** Formats `1.2 of 3.4 GB` or `900 MB of 3.4 GB`. */
function formatPart(done: number, total: number): string {
  const [doneText, totalText] = [formatBytes(done), formatBytes(total)]
  const unit = totalText.slice(totalText.indexOf(' '))
  return `${doneText.endsWith(unit) ? doneText.slice(0, -unit.length) : doneText} of ${totalText}`
}

function formatReplay({ replayed_until }: RestoreProgress, isLiveLine: boolean): string {
  if (replayed_until === null) return 'replaying'
  return `replaying, until ${replayed_until.slice(11, isLiveLine ? -1 : 16)} UTC`
}

function formatFailure({ name, id, status, failure }: PostgresCluster): string {
  return failure === undefined ? `cluster ${name} (${id}) is ${status}` : `cluster ${name} (${id}) failed: ${failure}`
}

function formatRestored(cluster: PostgresCluster, colors: boolean): string {
  const { name, id, status, endpoints, restore } = cluster
  const clusterArgs = sanitize(clusterArguments(name, cluster.organization.slug))
  const restoredTo = restore?.pitr_time ?? restore?.backup_id
  const overview: [string, Cell][] = [
    ['name', name],
    ['id', id],
    ...(restoredTo ? ([['restored to', restoredTo]] satisfies [string, Cell][]) : []),
    ...(restore?.loss ? ([['lost', restore.loss]] satisfies [string, Cell][]) : []),
  ]
  if (!endpoints) {
    const text = block([...overview, ['status', status]], colors)
    return `${text}\n\nCheck its progress with: berth postgres show ${clusterArgs}`
  }
  const { direct, pooler } = endpoints.primary
  return [
    block(
      [...overview, ['direct', `${direct.host}:${direct.port}`], ['pooler', `${pooler.host}:${pooler.port}`]],
      colors,
    ),
    '',
    `Connect with:            berth postgres connect ${clusterArgs}`,
    `All passwords are new:   berth postgres show ${clusterArgs} --reveal`,
  ].join('\n')
}
