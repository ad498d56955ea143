import { type Command, InvalidArgumentError, Option } from 'commander'
import type { PostgresBackup, PostgresCluster, RestoreProgress } from '../api-types.ts'
import { bytesText } from '../bytes.ts'
import { request, segment } from '../client.ts'
import { addExamples, type Cli, defaultOrg, type ProgressCli } from '../command.ts'
import { parseSeconds } from '../duration.ts'
import { Failure, Misuse } from '../failure.ts'
import { block, type Cell, printAnswer, visible } from '../output.ts'
import { startProgress, watch } from '../progress.ts'
import { isUnderWay, listBackups } from './backup.ts'
import { type Data, findCluster, type InOrg, listClusters, takesCluster, wordsFor } from './find.ts'
import { noWindowText, readPlatformClock } from './window.ts'

interface NewOptions extends InOrg {
  name?: string
  wait: boolean
}

interface RestoreOptions extends NewOptions {
  backup?: string
  to?: Moment
}

export type Moment = { is: 'at'; time: string } | { is: 'ago'; seconds: number } | { is: 'latest' }

export function addRestoreCommands(postgres: Command, cli: ProgressCli): void {
  addRestore(postgres, cli)
  const fork = makesCluster(takesCluster(postgres.command('fork')))
    .description('copy a cluster as it is now into a new one')
    .action((given: string, options: NewOptions) => forkCluster(cli, given, options))
  addExamples(fork, 'berth postgres fork shop', 'berth postgres fork shop --name shop-experiment')

  const undelete = postgres
    .command('undelete')
    .description('bring a deleted cluster back as a new one, as it was at its end')
    .argument('<cluster>', 'the id of the deleted cluster, or its name if it was the only one of that name')
    .option('--org <slug>', 'the organization in which the name is looked up', defaultOrg)
  makesCluster(undelete).action((given: string, options: NewOptions) => undeleteCluster(cli, given, options))
  addExamples(undelete, 'berth postgres list --deleted', 'berth postgres undelete 0123456789abcdef --name shop')
}

function addRestore(postgres: Command, cli: ProgressCli): void {
  const restore = makesCluster(takesCluster(postgres.command('restore')))
    .description('restore a backup or a moment into a new cluster; this one is not touched')
    .option('--backup <id>', 'the state at the end of this backup')
    .addOption(
      new Option(
        '--to <time>',
        "this moment: a time with an offset, one such as 5m-ago, or latest for the window's end",
      )
        .argParser(parseMoment)
        .conflicts('backup'),
    )
    .action((given: string, options: RestoreOptions) => restoreCluster(cli, given, options))
  addExamples(
    restore,
    "berth postgres restore shop --to '2026-11-15 10:02:03+01:00'",
    'berth postgres restore shop --to 1h30m-ago --name shop-before-the-accident',
    'berth postgres restore shop --to latest --no-wait',
    'berth postgres restore shop --backup 20261115-100000F',
  )
}

function makesCluster(command: Command): Command {
  return command
    .option('--name <name>', 'of the new cluster; generated when omitted')
    .option('--no-wait', 'return as soon as it has begun')
}

// An offset may lack its minutes, as in what PostgreSQL prints for now().
const timeForm = /^(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?)(?:([Zz])|([+-]\d\d)(:?\d\d)?)$/

// Each unit at most once and in this order, so that a slip such as 5m5m-ago is not taken for a time.
const agoForm = /^(?=\d)((?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+s)?)-ago$/

/** Reads the form only. The platform checks whether the date exists. */
export function parseMoment(text: string): Moment {
  const given = text.trim()
  if (given === 'latest') return { is: 'latest' }
  const time = timeForm.exec(given)
  if (time) return { is: 'at', time: `${time[1]}${time[2] ?? `${time[3]}:${(time[4] ?? '00').replace(':', '')}`}` }
  const ago = agoForm.exec(given)?.[1]
  const seconds = ago === undefined ? undefined : parseSeconds(ago)
  if (seconds !== undefined) return { is: 'ago', seconds }
  throw new InvalidArgumentError("Write a time with an offset ('2026-11-15 10:02:03+01:00'), 5m-ago, or latest.")
}

/** The time to ask for. A moment counted back from now is at the latest the window's end, which is a little behind. */
export function resolveMoment(
  moment: Exclude<Moment, { is: 'at' }>,
  latest: string,
  now: number,
): { time: string; isClamped: boolean } {
  if (moment.is === 'latest') return { time: latest, isClamped: false }
  const millis = now - moment.seconds * 1000
  if (millis > Date.parse(latest)) return { time: latest, isClamped: true }
  return { time: new Date(millis).toISOString(), isClamped: false }
}

async function restoreCluster(cli: ProgressCli, given: string, options: RestoreOptions): Promise<void> {
  const { backup, to, name } = options
  if (backup === undefined && to === undefined)
    throw new Misuse('say what to restore with --backup <id> or --to <time>')
  const path = await findCluster(cli, given, options)
  const target = to ? { pitr_time: await findTime(cli, path, to, options.wait) } : { backup_id: backup }
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', `${path}/restore`, { ...target, name })
  await followUntilReady(cli, created, options.wait)
}

async function findTime(cli: ProgressCli, path: string, moment: Moment, waits: boolean): Promise<string> {
  if (moment.is === 'at' && !waits) return moment.time
  const now = await readPlatformClock(cli.session())
  const { cluster, backups } = await watchWindow(cli, path, waits ? waitingFor(moment, now) : () => undefined)
  if (moment.is === 'at') return moment.time
  if (!cluster.recovery_window) throw new Failure(noWindowText(cluster, backups))
  const { latest } = cluster.recovery_window
  const { time, isClamped } = resolveMoment(moment, latest, now)
  const terminal = cli.terminal()
  if (isClamped && !terminal.json) {
    terminal.note(`The recovery window ends at ${latest}, which is before the moment asked for: restoring to its end.`)
  }
  return time
}

interface Source {
  cluster: PostgresCluster
  /** Listed when they tell why there is no window. */
  backups: PostgresBackup[]
}

function watchWindow(
  cli: ProgressCli,
  path: string,
  waitsFor: (source: Source) => string | undefined,
): Promise<Source> {
  const session = cli.session()
  const look = async () => {
    const { data: cluster } = await request<Data<PostgresCluster>>(session, 'GET', path)
    return { cluster, backups: cluster.recovery_window ? [] : (await listBackups(session, path)).data }
  }
  return watch(startProgress(cli.terminal(), cli.progress), look, waitsFor)
}

// Well above the three seconds by which a window trails the clock, and the second in which a first backup begins.
const windowSeconds = 10

/** A window begins with the first backup and trails the clock. Both come by themselves, while the source is well. */
function waitingFor(moment: Moment, now: number): (source: Source) => string | undefined {
  const end = Date.now() + windowSeconds * 1000
  // The clock is read to the second, so that what is in the same second is not in the future.
  const isPast = (time: number) => time < now + 1000
  return ({ cluster, backups: [newest] }) => {
    if (cluster.status !== 'ready') return undefined
    const isLate = Date.now() > end
    const window = cluster.recovery_window
    if (!window) {
      const isComing = newest ? isUnderWay(newest) : !isLate
      return isComing ? `Cluster ${visible(cluster.name)} waits for its first backup` : undefined
    }
    const time = momentMillis(moment, now)
    const isComing = time !== undefined && Date.parse(window.latest) < time && isPast(time) && !isLate
    return isComing ? 'The archive is about to have that moment' : undefined
  }
}

/** Undefined for the end of the window, wherever that is. */
function momentMillis(moment: Moment, now: number): number | undefined {
  if (moment.is === 'latest') return undefined
  return moment.is === 'at' ? Date.parse(moment.time) : now - moment.seconds * 1000
}

async function forkCluster(cli: ProgressCli, given: string, options: NewOptions): Promise<void> {
  const path = await findCluster(cli, given, options)
  const { name } = options
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', `${path}/fork`, { name })
  await followUntilReady(cli, created, options.wait)
}

async function undeleteCluster(cli: ProgressCli, given: string, options: NewOptions): Promise<void> {
  const path = `/v1/postgres/${segment(await findDeletedId(cli, given, options))}/undelete`
  const { name } = options
  const created = await request<Data<PostgresCluster>>(cli.session(), 'POST', path, { name })
  await followUntilReady(cli, created, options.wait)
}

/** A name is free again once its cluster is deleted, so that several may have had it. */
async function findDeletedId(cli: Cli, given: string, { org }: InOrg): Promise<string> {
  if (/^[a-z0-9]{16}$/.test(given)) return given
  const { data } = await listClusters(cli.session(), org, true)
  const found = data.filter(({ name, deleted_at }) => name === given && deleted_at !== undefined)
  if (found.length > 1) {
    throw new Misuse(
      `several deleted clusters were named ${given}; write one of ${found.map(({ id }) => id).join(', ')}`,
    )
  }
  if (found[0]) return found[0].id
  throw new Failure(`no deleted cluster ${given} in organization ${org}; "berth postgres list --deleted" shows all`)
}

async function followUntilReady(cli: ProgressCli, created: Data<PostgresCluster>, waits: boolean): Promise<void> {
  const terminal = cli.terminal()
  const answer = waits ? await watchRestore(cli, created.data) : created
  const cluster = answer.data
  const hasFailed = waits && cluster.status !== 'ready'
  if (terminal.json || !hasFailed) printAnswer(terminal, answer, () => restoredText(cluster, terminal.colors))
  if (hasFailed) throw new Failure(failureText(cluster))
}

/** Without a limit of its own: the platform gives up on what takes too long, and says why. */
function watchRestore(cli: ProgressCli, { id, name, organization }: PostgresCluster): Promise<Data<PostgresCluster>> {
  const session = cli.session()
  const terminal = cli.terminal()
  if (!terminal.json) terminal.note(`Restoring into cluster ${visible(name)} (${id}).`)
  return watch(
    startProgress(terminal, cli.progress),
    () => request<Data<PostgresCluster>>(session, 'GET', `/v1/postgres/${segment(id)}`),
    ({ data: { status, restore } }) => {
      const isUnderWay = status === 'creating' || status === 'initializing'
      return isUnderWay ? phaseText(restore, cli.progress.isTTY === true) : undefined
    },
    `The restore goes on. See how it comes along with: berth postgres show ${wordsFor(name, organization.slug)}`,
  )
}

/** Where a line cannot be rewritten, steps of ten percent and of a minute keep the lines few. */
export function phaseText(restore: RestoreProgress | undefined, isRewritten: boolean): string {
  if (restore?.phase === 'copying') return copyText(restore, isRewritten)
  if (restore?.phase === 'replaying') return replayText(restore, isRewritten)
  return restore?.phase === 'finishing' || restore?.phase === 'done' ? 'finishing' : 'waiting'
}

const barColumns = 20

function copyText({ bytes_done, bytes_total }: RestoreProgress, isRewritten: boolean): string {
  if (!bytes_total) return 'copying'
  const part = Math.min(1, bytes_done / bytes_total)
  if (!isRewritten) return `copying ${bytesText(bytes_total)}, ${Math.floor(part * 10) * 10} %`
  const filled = Math.floor(part * barColumns)
  const bar = '#'.repeat(filled) + '-'.repeat(barColumns - filled)
  return `copying ${ofText(Math.min(bytes_done, bytes_total), bytes_total)} [${bar}] ${Math.floor(part * 100)} %`
}

/** `1.2 of 3.4 GB`, `900 MB of 3.4 GB` */
function ofText(done: number, total: number): string {
  const [doneText, totalText] = [bytesText(done), bytesText(total)]
  const unit = totalText.slice(totalText.indexOf(' '))
  return `${doneText.endsWith(unit) ? doneText.slice(0, -unit.length) : doneText} of ${totalText}`
}

function replayText({ replayed_until }: RestoreProgress, isRewritten: boolean): string {
  if (replayed_until === null) return 'replaying'
  return `replaying, until ${replayed_until.slice(11, isRewritten ? -1 : 16)} UTC`
}

function failureText({ name, id, status, failure }: PostgresCluster): string {
  return failure === undefined ? `cluster ${name} (${id}) is ${status}` : `cluster ${name} (${id}) failed: ${failure}`
}

function restoredText(cluster: PostgresCluster, colors: boolean): string {
  const { name, id, status, endpoints, restore } = cluster
  const which = visible(wordsFor(name, cluster.organization.slug))
  const state = restore?.pitr_time ?? restore?.backup_id
  const overview: [string, Cell][] = [
    ['name', name],
    ['id', id],
    ...(state ? ([['restored to', state]] satisfies [string, Cell][]) : []),
  ]
  if (!endpoints) {
    const text = block([...overview, ['status', status]], colors)
    return `${text}\n\nSee how it comes along with: berth postgres show ${which}`
  }
  const { direct, pooler } = endpoints.primary
  return [
    block(
      [...overview, ['direct', `${direct.host}:${direct.port}`], ['pooler', `${pooler.host}:${pooler.port}`]],
      colors,
    ),
    '',
    `Connect with:            berth postgres connect ${which}`,
    `All passwords are new:   berth postgres show ${which} --reveal`,
  ].join('\n')
}
