import { type Benchmark, median, rangeText, repeat } from './framework.ts'
import { isDisturbed } from './turn.ts'

/** Measures a time in milliseconds, after one warm-up round. */
export function timed<F>(
  name: string,
  title: string,
  atMost: number,
  rounds: number,
  measure: (fixture: F, round: number) => Promise<number>,
): Benchmark<F> {
  return {
    name,
    title: `${title}, median`,
    target: { atMost },
    async run(fixture) {
      await measure(fixture, rounds)
      const disturbed = await isDisturbed()
      const millis = await repeat(rounds, (round) => measure(fixture, round))
      return {
        value: median(millis),
        unit: 'ms',
        reference: '',
        note: `${rounds} times, ${rangeText(millis, 1)} ms`,
        disturbed,
      }
    },
  }
}
