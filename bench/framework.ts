import { shareOfOthers } from './machine.ts'
import { openScope, type Scope } from './scope.ts'

/** Above what an idle platform uses for its polls. */
const quietShare = 0.2

export type Target = { atLeast: number } | { atMost: number }

export interface Measurement {
  value: number
  unit: string
  /** What the value is held against; empty when it stands for itself. */
  reference: string
  note: string
  /** Other programs kept the machine busy, so the value says little. */
  disturbed?: boolean
}

export interface Benchmark<Fixture> {
  name: string
  title: string
  target: Target
  run(fixture: Fixture): Promise<Measurement>
}

/** Benchmarks that share what they are run on. They run in the order given. */
export interface Group<Fixture> {
  setUp(scope: Scope): Promise<Fixture>
  benchmarks: Benchmark<Fixture>[]
}

/** A group whose fixture only its own benchmarks know. */
export interface OpenGroup {
  names: string[]
  run(wanted: (name: string) => boolean, scope: Scope, report: (outcome: Outcome) => void): Promise<void>
}

export interface Outcome {
  name: string
  title: string
  target: Target
  /** Undefined when the benchmark could not be run to its end. */
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

/** Says whether others kept the machine busy before or after, for a benchmark that does not watch for it itself. */
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

/** Runs what is wanted, group after group, and leaves nothing behind however it ends. */
export async function runGroups(
  groups: OpenGroup[],
  wanted: (name: string) => boolean,
  report: (outcome: Outcome) => void,
): Promise<void> {
  let scope = openScope()
  const stopped = onStopSignal(() => scope.close())
  for (const each of groups) {
    scope = openScope()
    // What fails because everything was taken down under it is no result.
    const unlessStopped = (outcome: Outcome) => (stopped.aborted ? undefined : report(outcome))
    try {
      await each.run((name) => wanted(name) && !stopped.aborted, scope, unlessStopped)
    } finally {
      await scope.close()
    }
  }
  if (stopped.aborted) await new Promise(() => {})
}

/** Takes everything down and ends the process; the answer tells meanwhile that this is so. */
function onStopSignal(clean: () => Promise<void>): AbortSignal {
  const stopping = new AbortController()
  const stop = () => {
    // Cleaning up is bounded, and to break it off is to leave a database running.
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
  /** Medians of the two sides on their own. */
  measured: number
  reference: number
  /** The spread of the ratio, and whether the machine was left to us. */
  note: string
  disturbed: boolean
}

const rounds = 11
const mostRounds = 15
type Pair = [measured: number, reference: number]

/**
 * Measures two sides in turn and compares within each round, so that a slow machine falls on both. Rounds that begin or
 * end while others use the processors are made up for by further ones, as long as there is time.
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
