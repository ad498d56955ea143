// Defines the test of one race: a sample of pairs within a time limit, or with BERTH_SOAK_ROUNDS every pair so often.
import { randomInt } from 'node:crypto'
import { expect, test } from 'vitest'
import { type Berth, end } from '../berth.ts'
import { type Answer, type Finding, type Race, type RaceReport, runRace } from './race.ts'

/** With the start of the platform and the last round, a file stays below a minute. */
const defaultBudgetMs = 30_000
const sampleTimeoutMs = 300_000

/** The sample of `make test` is the same in each run; soaks have others. BERTH_RACE_SEED chooses the order of the pairs and all offsets. */
const sampleSeed = 20261119

export function raceTest(name: string, race: () => Race, { budgetMs = defaultBudgetMs } = {}): void {
  const rounds = Number(process.env.BERTH_SOAK_ROUNDS ?? 0)
  const seed = Number(process.env.BERTH_RACE_SEED ?? (rounds > 0 ? randomInt(2 ** 31) : sampleSeed))
  const timeout = rounds > 0 ? 24 * 3_600_000 : sampleTimeoutMs
  test(name, { timeout }, async () => {
    const onFinding = ({ pair, round, problem }: Finding) => console.log(`${name}: round ${round}: ${pair}: ${problem}`)
    const report = await runRace(race(), { seed, onFinding, ...(rounds > 0 ? { rounds } : { budgetMs }) })
    console.log(`${name}: ${summaryOf(report)}`)
    expect(report.rounds).toBeGreaterThan(0)
    expect(report.findings, summaryOf(report)).toEqual([])
  })
}

function summaryOf({ seed, rounds, crashes, findings }: RaceReport): string {
  return `seed ${seed}, ${rounds} rounds, ${crashes} with a crash, ${findings.length} findings`
}

/** A platform whose control plane is killed and started again. */
export class CrashingBerth {
  readonly berth: Berth
  private control: Awaited<ReturnType<Berth['up']>> | undefined

  constructor(berth: Berth) {
    this.berth = berth
  }

  async up(): Promise<void> {
    this.control = await this.berth.up()
  }

  async crash(): Promise<void> {
    if (this.control) await end(this.control)
    await this.up()
  }

  /** Sends a request to the platform API or to that of sandboxes, and reads the whole answer. */
  async send(
    area: 'api' | 'sandbox',
    method: string,
    path: string,
    body?: object | string,
    headers: Record<string, string> = {},
  ): Promise<Answer> {
    const reply = await fetch(`${this.berth.addresses[area]}${path}`, {
      method,
      headers: { authorization: `Bearer ${this.berth.token}`, ...headers },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    return { status: reply.status, text: await reply.text() }
  }
}
