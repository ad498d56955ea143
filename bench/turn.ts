import { median, type Ratio, rangeText } from './framework.ts'
import { shareOfOthers } from './machine.ts'

const quietShare = 0.2
const quietTries = 15

/** Whether other programs keep the machine busy. Waits some time for our own background work to end. */
export async function isDisturbed(): Promise<boolean> {
  for (let tries = 0; tries < quietTries; tries++) if ((await shareOfOthers()) < quietShare) return false
  return true
}

/**
 * Like `interleave`, for longer measurements that leave background work behind: each one waits for an idle machine, and
 * all rounds count.
 */
export async function inTurn(
  rounds: number,
  measured: () => Promise<number>,
  reference: () => Promise<number>,
  ratioOf = (a: number, b: number) => a / b,
): Promise<Ratio> {
  const ours: number[] = []
  const theirs: number[] = []
  let quiet = 0
  for (let round = 0; round < rounds; round++) {
    const disturbedOurs = await isDisturbed()
    ours.push(await measured())
    const disturbedTheirs = await isDisturbed()
    theirs.push(await reference())
    if (!disturbedOurs && !disturbedTheirs) quiet += 1
  }
  const ratios = ours.map((value, round) => ratioOf(value, theirs[round]!))
  return {
    median: median(ratios),
    measured: median(ours),
    reference: median(theirs),
    note: `rounds ${rangeText(ratios, 2)}, ${quiet} of ${rounds} undisturbed`,
    disturbed: quiet < rounds / 2,
  }
}
