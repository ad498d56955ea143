import type { Command } from 'commander'
import type { PostgresAdoption } from '../api-types.ts'
import { request } from '../client.ts'
import { addExamples, type Cli } from '../command.ts'
import { printResult, sanitize, table } from '../output.ts'
import type { Data } from './find.ts'

export function addAdoptCommand(postgres: Command, cli: Cli): void {
  const adopt = postgres
    .command('adopt')
    .description('import clusters that exist only in the backup repository, after the state of a platform was lost')
    .option('--org <slug>', 'the organization to put them in; defaults to the one each cluster belonged to')
    .action((options: { org?: string }) => adoptClusters(cli, options.org))
  addExamples(adopt, 'berth postgres adopt', 'berth postgres adopt --org personal', 'berth postgres list --deleted')
}

async function adoptClusters(cli: Cli, org: string | undefined): Promise<void> {
  const terminal = cli.terminal()
  const answer = await request<Data<PostgresAdoption>>(cli.session(), 'POST', '/v1/postgres/adopt', { org_slug: org })
  for (const { id, reason } of answer.data.unusable) terminal.note(sanitize(`Cannot adopt ${id}: ${reason}`))
  printResult(terminal, answer, () => adoptionText(answer.data, terminal.colors))
}

function adoptionText({ adopted, known }: PostgresAdoption, colors: boolean): string {
  if (adopted.length === 0) {
    return `Nothing to adopt: the platform already knows every cluster in the repository (${known}).`
  }
  const rows = adopted.map(({ name, id, backups, windows }) => [name, id, backups, windows])
  return [
    table(['NAME', 'ID', 'BACKUPS', 'WINDOWS'], rows, colors),
    '',
    `Restore one with: berth postgres undelete ${adopted[0]!.id}`,
  ].join('\n')
}
