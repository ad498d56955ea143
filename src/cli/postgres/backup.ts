import type { Command } from 'commander'
import type { PostgresBackup } from '../api-types.ts'
import { formatBytes } from '../bytes.ts'
import { encodeSegment, request, type Session } from '../client.ts'
import { addExamples, type Cli, type ProgressCli } from '../command.ts'
import { ApiError, CommandError } from '../errors.ts'
import { type Cell, formatTime, printResult, sanitize, table } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import { clusterArguments, type Data, findCluster, type OrgOptions, withClusterArgument } from './find.ts'

interface BackupOptions extends OrgOptions {
  wait: boolean
}

export function addBackupCommands(postgres: Command, cli: ProgressCli): void {
  const backups = withClusterArgument(postgres.command('backups'))
    .description('list the backups of a cluster, newest first')
    .action((nameOrId: string, options: OrgOptions) => printBackups(cli, nameOrId, options))
  addExamples(backups, 'berth postgres backups shop', 'berth postgres backups shop --json')

  const backup = withClusterArgument(postgres.command('backup'))
    .description('take a backup of a cluster now and wait until it is completed')
    .option('--no-wait', 'return without waiting for the backup')
    .action((nameOrId: string, options: BackupOptions) => takeBackup(cli, nameOrId, options))
  addExamples(backup, 'berth postgres backup shop', 'berth postgres backup shop --no-wait --json')
  addPin(postgres, cli, 'pin', true, 'keep a backup permanently, even after the recovery window has passed it')
  addPin(postgres, cli, 'unpin', false, 'let a pinned backup expire with the recovery window again')
}

function addPin(postgres: Command, cli: Cli, name: string, pinned: boolean, description: string): void {
  const command = withClusterArgument(postgres.command(name))
    .argument('<backup>', 'the id of the backup, as shown by "berth postgres backups"')
    .description(description)
    .action(async (nameOrId: string, id: string, options: OrgOptions) => {
      const path = `${await findCluster(cli, nameOrId, options)}/backups/${encodeSegment(id)}`
      const answer = await request<Data<PostgresBackup>>(cli.session(), 'PATCH', path, { pinned })
      const effect = pinned ? 'is kept permanently' : 'is removed when the recovery window has passed it'
      printResult(cli.terminal(), answer, () => `Backup ${answer.data.id} ${effect}.`)
    })
  addExamples(command, `berth postgres ${name} shop 20261115-100000F`)
}

/** Lists the backups of a cluster, newest first. */
export function listBackups(session: Session, clusterPath: string): Promise<Data<PostgresBackup[]>> {
  return request(session, 'GET', `${clusterPath}/backups`)
}

async function printBackups(cli: Cli, nameOrId: string, options: OrgOptions): Promise<void> {
  const terminal = cli.terminal()
  const answer = await listBackups(cli.session(), await findCluster(cli, nameOrId, options))
  if (answer.data.length === 0 && !terminal.json) {
    return terminal.note(`Cluster ${sanitize(nameOrId)} has no backups yet; the first one starts automatically.`)
  }
  printResult(terminal, answer, () => backupTable(answer.data, terminal.colors))
}

function backupTable(backups: PostgresBackup[], colors: boolean): string {
  const hasFailures = backups.some(({ failure }) => failure !== undefined)
  const rows = backups.map((backup): Cell[] => [
    backup.id,
    backup.pinned ? `${backup.status}, pinned` : backup.status,
    backup.size_bytes === null ? null : formatBytes(backup.size_bytes),
    formatTime(backup.started_at),
    formatDuration(backup),
    formatTime(backup.verified_at),
    ...(hasFailures ? [backup.failure] : []),
  ])
  const headers = ['ID', 'STATUS', 'SIZE', 'STARTED', 'TOOK', 'VERIFIED', ...(hasFailures ? ['FAILURE'] : [])]
  return table(headers, rows, colors)
}

async function takeBackup(cli: ProgressCli, nameOrId: string, options: BackupOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, nameOrId, options)
  await requestBackup(cli, path, options.wait)
  // Only one backup runs at a time, so the newest is the one that was requested.
  const [started] = (await listBackups(session, path)).data
  if (!started) throw new CommandError(`the backup of cluster ${nameOrId} no longer exists`)
  const clusterArgs = clusterArguments(nameOrId, options.org)
  const backup = options.wait ? await watchBackup(cli, path, started, clusterArgs) : started
  const hasFailed = backup.status === 'failed'
  if (terminal.json || !hasFailed) printResult(terminal, { data: backup }, () => formatTaken(backup, clusterArgs))
  if (hasFailed)
    throw new CommandError(`backup ${backup.id} failed: ${backup.failure ?? 'the platform gave no reason'}`)
}

/** Starts a backup. If one is already running, a caller that waits waits for that one instead. */
async function requestBackup(cli: ProgressCli, path: string, shouldWait: boolean): Promise<void> {
  try {
    await request(cli.session(), 'POST', `${path}/backups`, {})
  } catch (error) {
    if (!(shouldWait && error instanceof ApiError && error.status === 409)) throw error
    const terminal = cli.terminal()
    if (!terminal.json) terminal.note('A backup is already in progress; waiting for it.')
  }
}

async function watchBackup(
  cli: ProgressCli,
  path: string,
  { id }: PostgresBackup,
  clusterArgs: string,
): Promise<PostgresBackup> {
  const session = cli.session()
  const ended = await pollUntil(
    startProgress(cli.terminal(), cli.progress),
    async () => (await listBackups(session, path)).data.find((backup) => backup.id === id),
    (backup) => (backup && isInProgress(backup) ? formatInProgress(backup, cli.progress.isTTY === true) : undefined),
    `Backup ${id} continues. Check its progress with: berth postgres backups ${clusterArgs}`,
  )
  if (!ended) throw new CommandError(`backup ${id} was removed`)
  return ended
}

export function isInProgress({ status }: PostgresBackup): boolean {
  return status === 'queued' || status === 'running'
}

/** Leaves the size out when lines cannot be rewritten, because each new size would print another line. */
function formatInProgress({ id, status, size_bytes }: PostgresBackup, isLiveLine: boolean): string {
  const size = isLiveLine && size_bytes ? `, ${formatBytes(size_bytes)} so far` : ''
  return `Backup ${id} is ${status}${size}`
}

function formatTaken(backup: PostgresBackup, clusterArgs: string): string {
  const { id, status, size_bytes, verified_at } = backup
  if (status !== 'completed') {
    return `Backup ${id} is ${status}. Check its progress with: berth postgres backups ${sanitize(clusterArgs)}`
  }
  const checked = verified_at === null ? '' : ', all checksums verified'
  return [
    `Backup ${id} is completed: ${formatBytes(size_bytes ?? 0)} in ${formatDuration(backup)}${checked}.`,
    `Restore it with: berth postgres restore ${sanitize(clusterArgs)} --backup ${id}`,
  ].join('\n')
}

function formatDuration({ started_at, finished_at }: PostgresBackup): string {
  return started_at && finished_at ? formatSpan((Date.parse(finished_at) - Date.parse(started_at)) / 1000) : ''
}

const units = [
  { name: 'd', seconds: 86_400 },
  { name: 'h', seconds: 3600 },
  { name: 'min', seconds: 60 },
]

/** Formats seconds in the largest unit that gives at least 1: `2.1 s`, `42 s`, `1.5 min`, `3 h`, `6 d`. */
export function formatSpan(seconds: number): string {
  const unit = units.find((each) => seconds >= each.seconds) ?? { name: 's', seconds: 1 }
  const count = Math.max(0, seconds / unit.seconds)
  return `${count < 9.95 ? Number(count.toFixed(1)) : Math.round(count)} ${unit.name}`
}
