import { withExamples } from '../src/api/docs/document.ts'
import { openApiDocument } from '../src/api/http/openapi.ts'
import { platformRoutes, sandboxRoutes } from '../src/api/routes.ts'
import { appStates } from '../src/model/app/app.ts'
import { machineStates } from '../src/model/app/machine.ts'
import { snapshotStates, volumeStates } from '../src/model/app/volume.ts'
import { backupStates } from '../src/model/postgres/backup.ts'
import { clusterStates } from '../src/model/postgres/cluster.ts'
import { drillStates } from '../src/model/postgres/drill.ts'
import { importStates } from '../src/model/postgres/import.ts'
import { sandboxStates } from '../src/model/sandbox/sandbox.ts'
import type { StateTable } from '../src/model/states.ts'
import { apiTypesSource } from './api-types.ts'

/** Maps the path of every generated file to its text. */
export function generatedFiles(): Record<string, string> {
  const platform = withExamples(openApiDocument('platform', platformRoutes))
  const sandbox = withExamples(openApiDocument('sandbox', sandboxRoutes))
  return {
    'openapi.json': json(platform),
    'openapi-sandbox.json': json(sandbox),
    'src/cli/api-types.ts': apiTypesSource(platform, sandbox),
    'docs/states.md': statesPage({
      cluster: clusterStates,
      backup: backupStates,
      drill: drillStates,
      import: importStates,
      app: appStates,
      machine: machineStates,
      volume: volumeStates,
      snapshot: snapshotStates,
      sandbox: sandboxStates,
    }),
  }
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`
}

function statesPage(tables: Record<string, StateTable>): string {
  const sections = Object.entries(tables).map(([name, table]) => `## ${name}\n\n${diagram(table)}\n\n${legend(table)}`)
  return `# States

This page shows the states of each resource and the transitions between them. Solid arrows are commands of API clients;
dotted arrows are results that the background loop records. The column "work" lists the possible results of the loop in
this state, or the condition that it maintains; "fails after" is the time without progress after which the loop records
\`failed\`. The page is generated from the state tables in \`src/model\` by \`make generate\`.

${sections.join('\n\n')}
`
}

function diagram(table: StateTable): string {
  const arrows = Object.entries(table).flatMap(([from, row]) => [
    ...Object.entries(row.commands ?? {}).map(([event, to]) => `  ${from} -->|${event}| ${to}`),
    ...Object.entries(row.outcomes ?? {}).map(([event, to]) => `  ${from} -.->|${event}| ${to}`),
  ])
  return ['```mermaid', 'flowchart LR', ...arrows, '```'].join('\n')
}

function legend(table: StateTable): string {
  const rows = Object.entries(table).map(([state, row]) => {
    const deadline = row.deadlineMinutes ? `${row.deadlineMinutes} min without progress` : ''
    return `| \`${state}\` | ${Object.keys(row.commands ?? {}).join(', ')} | ${row.keeps ?? Object.keys(row.outcomes ?? {}).join(', ')} | ${deadline} |`
  })
  return ['| state | commands | work | fails after |', '|---|---|---|---|', ...rows].join('\n')
}
