import type { Command } from 'commander'
import type { PostgresAdoption } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type ProgressCli } from '../command.ts'
import { CommandError } from '../errors.ts'
import { printResult, sanitize, table } from '../output.ts'
import { pollUntil, startProgress } from '../progress.ts'
import type { Data } from './find.ts'

export function addAdoptCommand(postgres: Command, cli: ProgressCli): void {
  const adopt = postgres
    .command('adopt')
    .description('import clusters that exist only in the backup repository, after the state of a platform was lost')
    .option('--org <slug>', 'the organization to put them in; defaults to the one each cluster belonged to')
    .action((options: { org?: string }) => adoptClusters(cli, options.org))
  addExamples(adopt, 'berth postgres adopt', 'berth postgres adopt --org personal', 'berth postgres list --deleted')
}

const path = '/v1/postgres/adopt'

async function adoptClusters(cli: ProgressCli, org: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const session = cli.session()
  let next: Data<PostgresAdoption> | undefined = await request(session, 'POST', path, { org_slug: org })
  const answer = await pollUntil(
    startProgress(terminal, cli.progress),
    async () => {
      const seen = next ?? (await request<Data<PostgresAdoption>>(session, 'GET', path))
      next = undefined
      return seen
    },
    ({ data }) => (data.status === 'running' ? formatProgress(data, cli.progress.isTTY === true) : undefined),
    'The adoption continues. Run the command again to follow it.',
  )
  for (const { id, reason } of answer.data.unusable) terminal.note(sanitize(`Cannot adopt ${id}: ${reason}`))
  for (const { name, id, problems = [] } of answer.data.adopted)
    for (const problem of problems) terminal.note(sanitize(`${name} (${id}): ${problem}`))
  printResult(terminal, answer, () => adoptionText(answer.data, terminal.colors))
  if (answer.data.error !== undefined) throw new CommandError(`the adoption ended early: ${answer.data.error}`)
}

/** When lines cannot be rewritten, steps of ten percent limit their number. */
export function formatProgress({ total, done }: Pick<PostgresAdoption, 'total' | 'done'>, isLiveLine: boolean): string {
  if (total === 0) return 'reading the repository'
  if (isLiveLine) return `adopting ${done} of ${total} clusters`
  return `adopting ${total} clusters, ${Math.floor((done / total) * 10) * 10} %`
}

function adoptionText({ adopted, known, unusable }: PostgresAdoption, colors: boolean): string {
  if (adopted.length === 0 && unusable.length === 0) {
    return `Nothing to adopt: the platform already knows every cluster in the repository (${known}).`
  }
  if (adopted.length === 0) return `Adopted none of ${unusable.length} clusters.`
  const rows = adopted.map(({ name, id, backups, windows }) => [name, id, backups, windows])
  return [
    table(['NAME', 'ID', 'BACKUPS', 'WINDOWS'], rows, colors),
    '',
    `Restore one with: berth postgres undelete ${adopted[0]!.id}`,
  ].join('\n')
}
