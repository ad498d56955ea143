import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { type Outcome, type Target, verdictOf } from './framework.ts'
import { describeLoad, describeMachine } from './machine.ts'

type Row = Record<(typeof columns)[number], string>

const columns = ['name', 'what', 'target', 'measured', 'result', 'against', 'note', 'on'] as const
const file = new URL('RESULTS.md', import.meta.url).pathname

export function rowOf(outcome: Outcome): Row {
  const { name, title, target, measurement, error } = outcome
  return {
    name,
    what: title,
    target: targetText(target, measurement?.unit ?? ''),
    measured: measurement ? valueText(measurement.value, measurement.unit) : '',
    result: `${verdictOf(outcome)}${measurement?.disturbed ? '?' : ''}`,
    against: measurement?.reference ?? '',
    note: measurement?.note ?? error?.message.split('\n')[0] ?? '',
    on: new Date().toISOString().slice(0, 16).replace('T', ' '),
  }
}

export function printRow({ name, measured, target, result, note }: Row): void {
  console.log(`${result.padEnd(7)}${name.padEnd(24)}${measured.padEnd(12)}${target.padEnd(14)}${note}`)
}

/** Keeps the rows of benchmarks that were not run. Rows that are not in `order` are dropped. */
export function writeResults(run: string, rows: Row[], order: string[]): void {
  const all = new Map([...readRows(), ...rows].map((row) => [row.name, row]))
  const kept = order.flatMap((name) => all.get(name) ?? [])
  writeFileSync(file, `${documentText(run, kept)}\n`)
}

function documentText(run: string, rows: Row[]): string {
  return [
    '# Benchmarks',
    '',
    'This file is written by `make bench`. A ratio (×) compares the platform with the setup in the column "against"; it is',
    'the median over rounds that measure both sides one after the other. A round is disturbed if other programs used the',
    'CPUs when it began or ended. A question mark after a result means that most rounds were disturbed: the value is then',
    'unreliable, and the CPU time per request is the better indicator.',
    '',
    `Last run: ${run}`,
    '',
    line([...columns]),
    line(columns.map(() => '---')),
    ...rows.map((row) => line(columns.map((column) => row[column]))),
  ].join('\n')
}

function readRows(): Row[] {
  if (!existsSync(file)) return []
  const lines = readFileSync(file, 'utf8').split('\n')
  const first = lines.indexOf(line(columns.map(() => '---')))
  if (first < 0) return []
  return lines
    .slice(first + 1)
    .filter((text) => text.startsWith('| '))
    .map((text) => {
      const cells = text.slice(2, -2).split(' | ')
      return Object.fromEntries(columns.map((column, index) => [column, cells[index] ?? ''])) as Row
    })
}

function line(cells: string[]): string {
  return `| ${cells.map((cell) => cell.replaceAll('|', '/')).join(' | ')} |`
}

function targetText(target: Target, unit: string): string {
  return 'atLeast' in target ? `≥ ${withUnit(target.atLeast, unit)}` : `≤ ${withUnit(target.atMost, unit)}`
}

function valueText(value: number, unit: string): string {
  return withUnit(value >= 100 ? Math.round(value) : Number(value.toPrecision(3)), unit)
}

function withUnit(value: number, unit: string): string {
  return unit === '×' ? `${value} ×` : `${value} ${unit}`.trim()
}

export function runText(): string {
  return `${today()}, ${describeMachine()}, Node ${process.version}, ${describeCommit()}, ${describeLoad()}.`
}

function today(): string {
  return new Date().toISOString().slice(0, 10)
}

function describeCommit(): string {
  try {
    const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8', stdio: 'pipe' })
    return `commit ${commit.trim()}`
  } catch {
    return 'no commit'
  }
}
