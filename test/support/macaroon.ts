import { createHmac } from 'node:crypto'
import { type Packed, pack, packArray, splitArray, unpack } from '../../src/model/account/msgpack.ts'

/** A caveat as type and body. */
export type PackedCaveat = [type: number, body: Packed]

/** Appends caveats to a token as its holder can: with nothing but the token itself. */
export function attenuate(token: string, ...caveats: PackedCaveat[]): string {
  const [nonce, location, before, tail] = splitArray(Buffer.from(token.slice('fm2_'.length), 'base64'))!
  const parts = splitArray(before!)!
  const signature = caveats.reduce(
    (key, caveat) => createHmac('sha256', key).update(pack(caveat)).digest(),
    unpack(tail!) as Buffer,
  )
  const all = packArray([...parts, ...caveats.flat(1).map((part) => pack(part))])
  return `fm2_${packArray([nonce!, location!, all, pack(signature)]).toString('base64')}`
}

/** The bits of actions. */
export const masks = { r: 1, w: 2, c: 4, d: 8, C: 16, all: 31 } as const

const set = (ids: Record<string, number> | Map<number, number>): Packed => [
  ids instanceof Map ? ids : new Map(Object.entries(ids)),
]

export const caveat = {
  organization: (id: number, mask: number): PackedCaveat => [0, [id, mask]],
  volumes: (ids: Record<string, number>): PackedCaveat => [2, set(ids)],
  apps: (...apps: [id: number, mask: number][]): PackedCaveat => [3, set(new Map(apps))],
  validity: (from: number, until: number): PackedCaveat => [4, [from, until]],
  features: (ids: Record<string, number>): PackedCaveat => [5, set(ids)],
  mutations: (...names: string[]): PackedCaveat => [6, [names]],
  machines: (ids: Record<string, number>): PackedCaveat => [7, set(ids)],
  thirdParty: (): PackedCaveat => [11, ['https://auth.example', Buffer.of(1), Buffer.of(2)]],
  ifPresent: (caveats: PackedCaveat[], otherwise: number): PackedCaveat => [13, [caveats.flat(1), otherwise]],
  clusters: (ids: Record<string, number>): PackedCaveat => [16, set(ids)],
  member: (): PackedCaveat => [22, []],
  action: (mask: number): PackedCaveat => [26, mask],
  commands: (...commands: { args: string[]; exact: boolean }[]): PackedCaveat => [
    27,
    commands.map(({ args, exact }) => [args, exact]),
  ],
  unknown: (): PackedCaveat => [200, []],
}
