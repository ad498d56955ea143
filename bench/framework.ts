import { shareOfOthers } from './machine.ts'
import { openScope, type Scope } from './scope.ts'

/** Above the CPU share that an idle platform needs for polling. */
const quietShare = 0.2

export type Target = { atLeast: number } | { atMost: number }

export interface Measurement {
  value: number
  unit: string
  /** What a ratio compares with; empty for absolute values. */
  reference: string
  note: string
  /** Whether other programs kept the machine busy, which makes the value unreliable. */
  disturbed?: boolean
}

export interface Benchmark<Fixture> {
  name: string
  title: string
  target: Target
  run(fixture: Fixture): Promise<Measurement>
}

/** Benchmarks that share a fixture. They run in the given order. */
export interface Group<Fixture> {
  setUp(scope: Scope): Promise<Fixture>
  benchmarks: Benchmark<Fixture>[]
}

/** A group without the type of its fixture, so that groups can be kept in one list. */
export interface OpenGroup {
  names: string[]
  run(wanted: (name: string) => boolean, scope: Scope, report: (outcome: Outcome) => void): Promise<void>
}

export interface Outcome {
  name: string
  title: string
  target: Target
  /** Undefined if the benchmark failed. */
  measurement?: Measurement
  error?: Error
}

export function group<Fixture>({ setUp, benchmarks }: Group<Fixture>): OpenGroup {
  return {
    names: benchmarks.map(({ name }) => name),
    async run(wanted, scope, report) {
      const chosen = benchmarks.filter(({ name }) => wanted(name))
      if (chosen.length === 0) return
      const fixture = attempt(() => setUp(scope))
      for (const benchmark of chosen) {
        const { name, title, target } = benchmark
        const result = await attempt(async () => watched(benchmark, unwrap(await fixture)))
        report({ name, title, target, ...result })
      }
    },
  }
}

/** Checks before and after whether other programs keep the machine busy; a benchmark may override the result. */
async function watched<Fixture>({ run }: Benchmark<Fixture>, fixture: Fixture): Promise<Measurement> {
  const before = await shareOfOthers()
  const measurement = await run(fixture)
  return { disturbed: Math.max(before, await shareOfOthers()) > quietShare, ...measurement }
}

type Attempt<T> = { measurement: T } | { error: Error }

async function attempt<T>(work: () => Promise<T>): Promise<Attempt<T>> {
  try {
    return { measurement: await work() }
  } catch (error) {
    return { error: error as Error }
  }
}

function unwrap<T>(result: Attempt<T>): T {
  if ('error' in result) throw result.error
  return result.measurement
}

/** Runs the wanted benchmarks group by group, and cleans up even after a failure or a signal. */
export async function runGroups(
  groups: OpenGroup[],
  wanted: (name: string) => boolean,
  report: (outcome: Outcome) => void,
): Promise<void> {
  let scope = openScope()
  const stopped = onStopSignal(() => scope.close())
  for (const each of groups) {
    scope = openScope()
    // Failures caused by the cleanup after a signal are not reported.
    const unlessStopped = (outcome: Outcome) => (stopped.aborted ? undefined : report(outcome))
    try {
      await each.run((name) => wanted(name) && !stopped.aborted, scope, unlessStopped)
    } finally {
      await scope.close()
    }
  }
  if (stopped.aborted) await new Promise(() => {})
}

/** Cleans up and exits on a signal. The returned signal is aborted while that happens. */
function onStopSignal(clean: () => Promise<void>): AbortSignal {
  const stopping = new AbortController()
  const stop = () => {
    // A second signal does not interrupt the cleanup, which takes limited time; otherwise databases would keep running.
    if (stopping.signal.aborted) return
    stopping.abort()
    console.error('\nstopping')
    clean()
      .catch((error) => console.error(error))
      .finally(() => process.exit(130))
  }
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, stop)
  return stopping.signal
}

export type Verdict = 'pass' | 'miss' | 'failed'

export function verdictOf({ measurement, target }: Outcome): Verdict {
  if (!measurement) return 'failed'
  const { value } = measurement
  return ('atLeast' in target ? value >= target.atLeast : value <= target.atMost) ? 'pass' : 'miss'
}

export interface Ratio {
  median: number
  /** The median of each side. */
  measured: number
  reference: number
  /** The range of the ratio and the number of undisturbed rounds. */
  note: string
  disturbed: boolean
}

const rounds = 11
const mostRounds = 15
type Pair = [measured: number, reference: number]

/**
 * Measures two sides alternately and compares them within each round, so that a slow machine affects both. Rounds that
 * begin or end while other programs use the CPUs are repeated as long as there is time.
 */
export async function interleave(measured: () => Promise<number>, reference: () => Promise<number>): Promise<Ratio> {
  const all: Pair[] = []
  const quiet: Pair[] = []
  while (quiet.length < rounds && all.length < mostRounds) {
    const before = await shareOfOthers()
    const pair: Pair = [await measured(), await reference()]
    all.push(pair)
    if (Math.max(before, await shareOfOthers()) < quietShare) quiet.push(pair)
  }
  const disturbed = quiet.length < rounds / 2
  const undisturbed = `${quiet.length} of ${all.length} rounds undisturbed`
  return summarize(disturbed ? all : quiet, undisturbed, disturbed)
}

function summarize(pairs: Pair[], undisturbed: string, disturbed: boolean): Ratio {
  const ratios = pairs.map(([a, b]) => a / b)
  return {
    median: median(ratios),
    measured: median(pairs.map(([a]) => a)),
    reference: median(pairs.map(([, b]) => b)),
    note: `rounds ${rangeText(ratios, 2)}, ${undisturbed}`,
    disturbed,
  }
}

export async function repeat(times: number, measure: (round: number) => Promise<number>): Promise<number[]> {
  const values: number[] = []
  for (let round = 0; round < times; round++) values.push(await measure(round))
  return values
}

export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

export function median(values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = sorted.length >> 1
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}

export function rangeText(values: number[], digits = 0): string {
  return `${Math.min(...values).toFixed(digits)} to ${Math.max(...values).toFixed(digits)}`
}
