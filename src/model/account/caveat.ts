// The restrictions that the holder of a token appends to it before handing it on. Types and meaning are those of the clients'
// macaroon library. Everything that is not known here is refused, because an unknown restriction cannot be enforced.
import { type Access, every, memberFeatures } from './access.ts'
import type { Packed } from './msgpack.ts'

type SetKind = 'app' | 'volume' | 'machine' | 'cluster' | 'feature' | 'appFeature' | 'machineFeature' | 'storageObject'

export type Caveat =
  | { type: 'organization'; id: number; mask: number }
  /** The key 0 or '' is the wildcard, and then the only one. */
  | { type: 'set'; kind: SetKind; masks: ReadonlyMap<number | string, number> }
  | { type: 'mutations'; names: readonly string[] }
  | { type: 'commands'; commands: readonly Command[] }
  /** Seconds since the epoch. */
  | { type: 'validity'; from: number; until: number }
  | { type: 'action'; mask: number }
  | { type: 'roles'; mask: number }
  /** Names the user who created the token and restricts nothing. */
  | { type: 'user' }
  | { type: 'ifPresent'; caveats: readonly Caveat[]; otherwise: number }
  /** Requires something that requests to this platform never have, such as the proof of a third party. */
  | { type: 'unsatisfiable' }

interface Command {
  args: readonly string[]
  /** Otherwise `args` is a prefix. */
  exact: boolean
}

/** Counts nested caveats as well. Clients append one or two. */
export const maxCaveats = 64

/** Thrown by the readers below; `readCaveats` turns it into undefined. */
class Malformed extends Error {}

/** Reads pairs of types and bodies; undefined when one of them is unknown or malformed, or when there are too many. */
export function readCaveats(pairs: readonly (readonly [type: Packed, body: Packed])[]): Caveat[] | undefined {
  try {
    return readPairs(pairs, { left: maxCaveats })
  } catch (err) {
    if (err instanceof Malformed) return undefined
    throw err
  }
}

interface Budget {
  left: number
}

function readPairs(pairs: readonly (readonly [Packed, Packed])[], budget: Budget): Caveat[] {
  budget.left -= pairs.length
  if (budget.left < 0) throw new Malformed()
  return pairs.map(([type, body]) => {
    const read = typeof type === 'number' ? readers.get(type) : undefined
    if (!read) throw new Malformed()
    return read(body, budget)
  })
}

type Reader = (body: Packed, budget: Budget) => Caveat

const readers = new Map<number, Reader>([
  [0, readOrganization],
  [2, setOf('volume', isText)],
  [3, setOf('app', isNatural)],
  [4, readValidity],
  [5, setOf('feature', isText)],
  [6, (body) => ({ type: 'mutations', names: texts(fields(body, 1)[0]) })],
  [7, setOf('machine', isText)],
  [10, () => ({ type: 'user' })],
  [11, () => ({ type: 'unsatisfiable' })], // the discharge of a third party
  [13, readIfPresent],
  [14, setOf('machineFeature', isText)],
  [15, () => ({ type: 'unsatisfiable' })], // the machine that sends the request
  [16, setOf('cluster', isText)],
  [22, () => ({ type: 'roles', mask: memberRole })],
  [26, (body) => ({ type: 'action', mask: natural(body) })],
  [27, (body) => ({ type: 'commands', commands: list(body).map(readCommand) })],
  [28, setOf('appFeature', isText)],
  [29, setOf('storageObject', isText)],
  [30, (body) => ({ type: 'roles', mask: natural(body) })],
  [31, () => ({ type: 'unsatisfiable' })], // the app or machine that sends the request
])

function readOrganization(body: Packed): Caveat {
  const [id, mask] = fields(body, 2)
  return { type: 'organization', id: natural(id), mask: natural(mask) }
}

function readValidity(body: Packed): Caveat {
  const [from, until] = fields(body, 2)
  if (typeof from !== 'number' || typeof until !== 'number') throw new Malformed()
  return { type: 'validity', from, until }
}

function readCommand(body: Packed): Command {
  const [args, exact] = fields(body, 2)
  if (typeof exact !== 'boolean') throw new Malformed()
  return { args: texts(args), exact }
}

function readIfPresent(body: Packed, budget: Budget): Caveat {
  const [inner, otherwise] = fields(body, 2)
  return { type: 'ifPresent', caveats: readPairs(pairsOf(list(inner)), budget), otherwise: natural(otherwise) }
}

/** Types and bodies alternate. */
function pairsOf(flat: Packed[]): [Packed, Packed][] {
  if (flat.length % 2 !== 0) throw new Malformed()
  return Array.from({ length: flat.length / 2 }, (_, index) => [flat[2 * index]!, flat[2 * index + 1]!])
}

function setOf<Id extends number | string>(kind: SetKind, isId: (value: Packed) => value is Id): Reader {
  return (body) => {
    const [map] = fields(body, 1)
    if (!(map instanceof Map)) throw new Malformed()
    const masks = new Map([...map].map(([id, mask]) => [isId(id) ? id : fail(), natural(mask)]))
    if (masks.size > 1 && (masks.has(0 as Id) || masks.has('' as Id))) throw new Malformed()
    return { type: 'set', kind, masks }
  }
}

function fail(): never {
  throw new Malformed()
}

function isText(value: Packed): value is string {
  return typeof value === 'string'
}

function isNatural(value: Packed | undefined): value is number {
  return typeof value === 'number' && value >= 0
}

function natural(value: Packed | undefined): number {
  return isNatural(value) ? value : fail()
}

/** Go writes an empty list as nil. */
function list(value: Packed | undefined): Packed[] {
  return Array.isArray(value) ? value : value === null ? [] : fail()
}

function texts(value: Packed | undefined): string[] {
  return list(value).map((text) => (isText(text) ? text : fail()))
}

function fields(body: Packed, count: number): Packed[] {
  return Array.isArray(body) && body.length === count ? body : fail()
}

/** When the first validity window ends, in seconds since the epoch; those inside of conditions count as well. */
export function earliestEnd(caveats: readonly Caveat[]): number {
  return Math.min(
    Number.POSITIVE_INFINITY,
    ...caveats.map((caveat) => {
      if (caveat.type === 'ifPresent') return earliestEnd(caveat.caveats)
      return caveat.type === 'validity' ? caveat.until : Number.POSITIVE_INFINITY
    }),
  )
}

/** Whether the token may be used at all at this time, in seconds since the epoch. */
export function isCurrent(caveats: readonly Caveat[], now = Date.now() / 1000): boolean {
  return caveats.every((caveat) => caveat.type !== 'validity' || (now >= caveat.from && now <= caveat.until))
}

/** Whether all caveats permit the access. `now` is in seconds since the epoch. */
export function permits(caveats: readonly Caveat[], access: Access, now = Date.now() / 1000): boolean {
  return caveats.every((caveat) => judge(caveat, access, now) === 'permitted')
}

/** `unspecified`: the access does not concern the kind of resource that the caveat is about. It is a refusal outside of `ifPresent`. */
type Verdict = 'permitted' | 'refused' | 'unspecified'

function judge(caveat: Caveat, access: Access, now: number): Verdict {
  switch (caveat.type) {
    case 'organization':
      return judgeOrganization(caveat, access)
    case 'set':
      return judgeSet(caveat, access)
    case 'mutations':
      return access.mutation === undefined ? 'unspecified' : verdict(caveat.names.includes(access.mutation))
    case 'commands':
      return judgeCommand(caveat.commands, access.command)
    case 'validity':
      return verdict(now >= caveat.from && now <= caveat.until)
    case 'action':
      return verdict(isWithin(access.action, caveat.mask))
    case 'roles':
      return verdict(isWithin(roleFor(access), caveat.mask))
    case 'user':
      return 'permitted'
    case 'ifPresent':
      return judgeCondition(caveat, access, now)
    case 'unsatisfiable':
      return 'refused'
  }
}

function verdict(isPermitted: boolean): Verdict {
  return isPermitted ? 'permitted' : 'refused'
}

/** Bitwise operators would cut larger numbers to 32 bits, so those are compared as big integers. */
function isWithin(bits: number, mask: number): boolean {
  return (BigInt(bits) & BigInt(mask)) === BigInt(bits)
}

function judgeOrganization({ id, mask }: Extract<Caveat, { type: 'organization' }>, access: Access): Verdict {
  if (access.org === undefined) return 'unspecified'
  return verdict((id === 0 || id === access.org) && isWithin(access.action, mask))
}

function judgeSet({ kind, masks }: Extract<Caveat, { type: 'set' }>, access: Access): Verdict {
  const id = access[kind]
  if (id === undefined) return 'unspecified'
  const wildcard = masks.get(0) ?? masks.get('')
  const mask = wildcard ?? (id === every ? undefined : masks.get(id))
  return verdict(mask !== undefined && isWithin(access.action, mask))
}

function judgeCommand(commands: readonly Command[], command: readonly string[] | undefined): Verdict {
  if (command === undefined) return 'unspecified'
  return verdict(
    commands.some(
      ({ args, exact }) =>
        (exact ? args.length === command.length : args.length <= command.length) &&
        args.every((arg, index) => arg === command[index]),
    ),
  )
}

/** The caveats inside are about kinds of resources; those of them that the access concerns all have to permit it. */
function judgeCondition(
  { caveats, otherwise }: Extract<Caveat, { type: 'ifPresent' }>,
  access: Access,
  now: number,
): Verdict {
  const verdicts = caveats.map((caveat) => judge(caveat, access, now)).filter((one) => one !== 'unspecified')
  if (verdicts.length > 0) return verdict(verdicts.every((one) => one === 'permitted'))
  return verdict(isWithin(access.action, otherwise))
}

const memberRole = 1
const adminRole = 0xffff_ffff

function roleFor({ feature }: Access): number {
  return feature === undefined || memberFeatures.some((one) => one === feature) ? memberRole : adminRole
}
