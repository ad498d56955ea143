// Which versions of its parts Berth was tested with. An older or newer one often works, so it is only a warning.
import { type Finding, ok, warning } from './finding.ts'

export interface Tested {
  /** The oldest first. Those in between are taken to work as well. */
  versions: string[]
  /** How many numbers of a version can make a difference: 1 compares 17.5 with 17.10 as equal. */
  numbers: number
}

/** The versions of Debian 12 and 13, and of the packages in the lockfile. */
export const tested = {
  Node: { versions: ['24.21'], numbers: 1 },
  kernel: { versions: ['6.18'], numbers: 1 },
  s6: { versions: ['2.11', '2.13'], numbers: 2 },
  pgbouncer: { versions: ['1.18', '1.24'], numbers: 2 },
  bubblewrap: { versions: ['0.8', '0.12'], numbers: 2 },
  iproute2: { versions: ['6.1', '6.15'], numbers: 1 },
  nftables: { versions: ['1.0', '1.1'], numbers: 2 },
  'dnsmasq-base': { versions: ['2.90', '2.91'], numbers: 2 },
  openssl: { versions: ['3.0', '3.5'], numbers: 1 },
  perl: { versions: ['5.36', '5.40'], numbers: 2 },
  'util-linux': { versions: ['2.38', '2.41'], numbers: 2 },
  git: { versions: ['2.39', '2.47'], numbers: 1 },
  'btrfs-progs': { versions: ['6.2', '6.14'], numbers: 1 },
  e2fsprogs: { versions: ['1.47'], numbers: 2 },
  xfsprogs: { versions: ['6.1', '6.13'], numbers: 1 },
  'PostgreSQL 16': { versions: ['16.14'], numbers: 1 },
  'PostgreSQL 17': { versions: ['17.10'], numbers: 1 },
} satisfies Record<string, Tested>

export type Part = keyof typeof tested

/** Negative if `a` is older than `b`. Only the first numbers count. */
export function compareVersions(a: string, b: string, numbers: number): number {
  const [left, right] = [a, b].map((version) => version.split('.').slice(0, numbers).map(Number))
  for (let index = 0; index < numbers; index += 1) {
    const difference = (left![index] ?? 0) - (right![index] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}

/** Judges the version of a part that is there. `upgrade` is the command that gets a newer one. */
export function judgeVersion(part: Part, version: string | undefined, found: string, upgrade: string): Finding {
  const { versions, numbers }: Tested = tested[part]
  const facts = { ...(version === undefined ? {} : { version }), tested: versions }
  if (version === undefined) return { ...ok(found), ...facts }
  const [oldest = '', newest = ''] = [versions[0], versions.at(-1)]
  const judge = (how: string, fix: string) => {
    const cost = `Berth is tested with ${part.replace(/-base$/, '')} ${versions.join(' and ')}. This one is ${how} and may behave differently.`
    return { ...warning(found, cost, fix), ...facts }
  }
  if (compareVersions(version, oldest, numbers) < 0) return judge('older', upgrade)
  if (compareVersions(version, newest, numbers) > 0) return judge('newer', 'make test, which tries this version')
  return { ...ok(found), ...facts }
}
