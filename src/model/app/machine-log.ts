/** Returns the first `count` entries and those with the same time as the last of them, so that a page never splits a moment. */
export function takeWithTies<T extends { at: number }>(sorted: T[], count: number): T[] {
  const last = sorted[count - 1]
  return last === undefined ? sorted : sorted.filter(({ at }) => at <= last.at)
}
