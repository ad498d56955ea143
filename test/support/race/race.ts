// Issues pairs of operations of one resource at nearly the same moment, and compares what the API then describes with what
// is so. The operations are data; see `test/e2e/race`.
import { setTimeout as sleep } from 'node:timers/promises'
import { type Random, seededRandom } from './random.ts'

export interface Answer {
  status: number
  text: string
}

export interface Operation {
  name: string
  /** Sends one request and reads the whole answer. */
  run(): Promise<Answer>
}

export interface Race {
  operations: Operation[]
  /** Brings the resource to the state in which each round begins. */
  prepare(): Promise<void>
  /** Returns what differs between description and reality; undefined when they agree. It is asked until they do. */
  findDifference(): Promise<string | undefined>
  /** How long the background loop may take after a round; a minute when omitted. */
  maxSettleMs?: number
  /** Kills the control plane with SIGKILL and starts it again. */
  crash(): Promise<void>
  /** Whether this answer of `name` is right although it is a server error, beside an operation such as a restart. */
  mayFail?(name: string, beside: string, answer: Answer): boolean
}

export interface Finding {
  pair: string
  round: number
  problem: string
}

export interface RaceReport {
  seed: number
  rounds: number
  crashes: number
  findings: Finding[]
}

export interface RaceOptions {
  /** Pairs are drawn at random until this time is over. Without it, all pairs run. */
  budgetMs?: number
  /** How often each pair runs. */
  rounds?: number
  seed: number
  /** Called at once, because all rounds can take hours. */
  onFinding?(finding: Finding): void
}

const maxOffsetMs = 60
/** One round in so many has a crash of the control plane in it. */
const crashInterval = 5
/** More than any operation waits for another. */
const maxAnswerMs = 90_000
/** More than a step of the background loop takes to repair something. */
const defaultSettleMs = 60_000
const settlePollMs = 50

export async function runRace(race: Race, options: RaceOptions): Promise<RaceReport> {
  const { budgetMs, rounds = 1, seed } = options
  const random = seededRandom(seed)
  const report: RaceReport = { seed, rounds: 0, crashes: 0, findings: [] }
  const deadline = performance.now() + (budgetMs ?? Number.POSITIVE_INFINITY)
  for (let round = 0; round < rounds; round++) {
    for (const pair of random.shuffle(pairsOf(race.operations))) {
      if (performance.now() > deadline) return report
      await runRound(race, pair, { random, report, onFinding: options.onFinding ?? (() => {}) })
    }
  }
  return report
}

type Pair = [Operation, Operation]

/** Each operation with each, also with itself. */
export function pairsOf(operations: Operation[]): Pair[] {
  return operations.flatMap((one, at) => operations.slice(at).map((other): Pair => [one, other]))
}

interface Round {
  random: Random
  report: RaceReport
  onFinding(finding: Finding): void
}

async function runRound(race: Race, pair: Pair, { random, report, onFinding }: Round) {
  const number = ++report.rounds
  const isCrashing = number % crashInterval === 0
  const note = (problem: string) => {
    const finding = { pair: pair.map(({ name }) => name).join(' with '), round: number, problem }
    report.findings.push(finding)
    onFinding(finding)
  }
  await race.prepare()
  const answers = pair.map(async ({ name, run }, at) => {
    await sleep(random.below(maxOffsetMs))
    const problem = await problemOf(run, (answer) => race.mayFail?.(name, pair[1 - at]!.name, answer) ?? false)
    // A killed control plane answers nothing.
    if (problem !== undefined && !isCrashing) note(`${name}: ${problem}`)
  })
  if (isCrashing) {
    report.crashes++
    await sleep(random.below(maxOffsetMs))
    await race.crash()
  }
  await Promise.all(answers)
  const difference = await waitForAgreement(race)
  if (difference !== undefined) note(`${isCrashing ? 'after a crash: ' : ''}${difference}`)
}

async function problemOf(run: Operation['run'], mayFail: (answer: Answer) => boolean): Promise<string | undefined> {
  try {
    const answer = await Promise.race([run(), sleep(maxAnswerMs, undefined, { ref: false })])
    if (answer === undefined) return `no answer within ${maxAnswerMs / 1000} s`
    return answer.status >= 500 && !mayFail(answer) ? `${answer.status} ${answer.text.slice(0, 300)}` : undefined
  } catch (error) {
    return `failed: ${(error as Error).message}`
  }
}

/** Requests are answered before the background loop has finished, so it gets time. */
async function waitForAgreement(race: Race): Promise<string | undefined> {
  const { maxSettleMs = defaultSettleMs } = race
  for (const deadline = performance.now() + maxSettleMs; ; await sleep(settlePollMs)) {
    const difference = await race.findDifference()
    if (difference === undefined || performance.now() > deadline) return difference
  }
}
