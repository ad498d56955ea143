import type { Command } from 'commander'
import type { PostgresBackup } from '../api-types.ts'
import { bytesText } from '../bytes.ts'
import { request, type Session, segment } from '../client.ts'
import { addExamples, type Cli, type ProgressCli } from '../command.ts'
import { Failure, Refusal } from '../failure.ts'
import { type Cell, printAnswer, table, timeText, visible } from '../output.ts'
import { startProgress, watch } from '../progress.ts'
import { type Data, findCluster, type InOrg, takesCluster, wordsFor } from './find.ts'

interface BackupOptions extends InOrg {
  wait: boolean
}

export function addBackupCommands(postgres: Command, cli: ProgressCli): void {
  const backups = takesCluster(postgres.command('backups'))
    .description('list the backups of a cluster, newest first')
    .action((given: string, options: InOrg) => printBackups(cli, given, options))
  addExamples(backups, 'berth postgres backups shop', 'berth postgres backups shop --json')

  const backup = takesCluster(postgres.command('backup'))
    .description('take a backup of a cluster now, and wait until it is completed')
    .option('--no-wait', 'return as soon as it is asked for')
    .action((given: string, options: BackupOptions) => takeBackup(cli, given, options))
  addExamples(backup, 'berth postgres backup shop', 'berth postgres backup shop --no-wait --json')
  addPin(postgres, cli, 'pin', true, 'keep a backup for good, also past the recovery window')
  addPin(postgres, cli, 'unpin', false, 'keep a backup no longer than others')
}

function addPin(postgres: Command, cli: Cli, name: string, pinned: boolean, about: string): void {
  const command = takesCluster(postgres.command(name))
    .argument('<backup>', 'its id, as "berth postgres backups" shows it')
    .description(about)
    .action(async (given: string, id: string, options: InOrg) => {
      const path = `${await findCluster(cli, given, options)}/backups/${segment(id)}`
      const answer = await request<Data<PostgresBackup>>(cli.session(), 'PATCH', path, { pinned })
      const says = pinned ? 'is kept for good' : 'goes when the recovery window has passed it'
      printAnswer(cli.terminal(), answer, () => `Backup ${answer.data.id} ${says}.`)
    })
  addExamples(command, `berth postgres ${name} shop 20261115-100000F`)
}

/** Newest first. */
export function listBackups(session: Session, clusterPath: string): Promise<Data<PostgresBackup[]>> {
  return request(session, 'GET', `${clusterPath}/backups`)
}

async function printBackups(cli: Cli, given: string, options: InOrg): Promise<void> {
  const terminal = cli.terminal()
  const answer = await listBackups(cli.session(), await findCluster(cli, given, options))
  if (answer.data.length === 0 && !terminal.json) {
    return terminal.note(`Cluster ${visible(given)} has no backups yet; the first one starts by itself.`)
  }
  printAnswer(terminal, answer, () => backupTable(answer.data, terminal.colors))
}

function backupTable(backups: PostgresBackup[], colors: boolean): string {
  const hasFailures = backups.some(({ failure }) => failure !== undefined)
  const rows = backups.map((backup): Cell[] => [
    backup.id,
    backup.pinned ? `${backup.status}, pinned` : backup.status,
    backup.size_bytes === null ? null : bytesText(backup.size_bytes),
    timeText(backup.started_at),
    tookText(backup),
    timeText(backup.verified_at),
    ...(hasFailures ? [backup.failure] : []),
  ])
  const headers = ['ID', 'STATUS', 'SIZE', 'STARTED', 'TOOK', 'VERIFIED', ...(hasFailures ? ['FAILURE'] : [])]
  return table(headers, rows, colors)
}

async function takeBackup(cli: ProgressCli, given: string, options: BackupOptions): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  const path = await findCluster(cli, given, options)
  await beginBackup(cli, path, options.wait)
  // Only one is under way at a time, so that the newest is the one that was asked for.
  const [begun] = (await listBackups(session, path)).data
  if (!begun) throw new Failure(`the backup of cluster ${given} is gone`)
  const which = wordsFor(given, options.org)
  const backup = options.wait ? await watchBackup(cli, path, begun, which) : begun
  const hasFailed = backup.status === 'failed'
  if (terminal.json || !hasFailed) printAnswer(terminal, { data: backup }, () => takenText(backup, which))
  if (hasFailed) throw new Failure(`backup ${backup.id} failed: ${backup.failure ?? 'the platform does not say why'}`)
}

/** One that is in progress will hold all that is there now, so that who waits can as well wait for that one. */
async function beginBackup(cli: ProgressCli, path: string, waits: boolean): Promise<void> {
  try {
    await request(cli.session(), 'POST', `${path}/backups`, {})
  } catch (error) {
    if (!(waits && error instanceof Refusal && error.status === 409)) throw error
    const terminal = cli.terminal()
    if (!terminal.json) terminal.note('A backup is in progress already; waiting for that one.')
  }
}

async function watchBackup(
  cli: ProgressCli,
  path: string,
  { id }: PostgresBackup,
  which: string,
): Promise<PostgresBackup> {
  const session = cli.session()
  const ended = await watch(
    startProgress(cli.terminal(), cli.progress),
    async () => (await listBackups(session, path)).data.find((backup) => backup.id === id),
    (backup) => (backup && isUnderWay(backup) ? underWayText(backup, cli.progress.isTTY === true) : undefined),
    `Backup ${id} goes on. See how it comes along with: berth postgres backups ${which}`,
  )
  if (!ended) throw new Failure(`backup ${id} was removed`)
  return ended
}

export function isUnderWay({ status }: PostgresBackup): boolean {
  return status === 'queued' || status === 'running'
}

/** Where a line cannot be rewritten, each new size would be one more. */
function underWayText({ id, status, size_bytes }: PostgresBackup, isRewritten: boolean): string {
  const size = isRewritten && size_bytes ? `, ${bytesText(size_bytes)} so far` : ''
  return `Backup ${id} is ${status}${size}`
}

function takenText(backup: PostgresBackup, which: string): string {
  const { id, status, size_bytes, verified_at } = backup
  if (status !== 'completed') {
    return `Backup ${id} is ${status}. See how it comes along with: berth postgres backups ${visible(which)}`
  }
  const checked = verified_at === null ? '' : ', every checksum read and right'
  return [
    `Backup ${id} is completed: ${bytesText(size_bytes ?? 0)} in ${tookText(backup)}${checked}.`,
    `Restore it with: berth postgres restore ${visible(which)} --backup ${id}`,
  ].join('\n')
}

function tookText({ started_at, finished_at }: PostgresBackup): string {
  return started_at && finished_at ? spanText((Date.parse(finished_at) - Date.parse(started_at)) / 1000) : ''
}

const units = [
  { name: 'd', seconds: 86_400 },
  { name: 'h', seconds: 3600 },
  { name: 'min', seconds: 60 },
]

/** In the largest unit of which it has one: `2.1 s`, `42 s`, `1.5 min`, `3 h`, `6 d`. */
export function spanText(seconds: number): string {
  const unit = units.find((each) => seconds >= each.seconds) ?? { name: 's', seconds: 1 }
  const count = Math.max(0, seconds / unit.seconds)
  return `${count < 9.95 ? Number(count.toFixed(1)) : Math.round(count)} ${unit.name}`
}
