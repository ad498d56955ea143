// Lets a service check a token that it received: whether it is valid and whether it permits an action.
import { type Static, Type } from 'typebox'
import { badRequest } from '../errors.ts'
import type { Micros } from '../time.ts'
import { actionLetters as actions, lettersOf } from './access.ts'
import type { Caveat } from './caveat.ts'
import type { Caller } from './token.ts'

/** A valid token and the resources it is limited to. */
export interface ValidToken extends Caller {
  hash: Buffer
  orgSlug: string | null
  orgNumericId: number | null
  appName: string | null
  appNumericId: number | null
  createdAt: Micros
  expiresAt: Micros | null
}

const actionRefusal = `action must be letters of ${actions}, or a number from 0 to 31`

const Name = (description: string) => Type.Optional(Type.String({ description }))

export const TokenAccess = Type.Object(
  {
    org_slug: Name('The organization. With an app it has to be that of the app.'),
    app_name: Name('The app.'),
    machine_id: Name('The machine; its app need not be named.'),
    volume_id: Name('The volume; its app need not be named.'),
    action: Type.Optional(
      Type.Union(
        [
          Type.String({ pattern: `^([${actions}]*|\\*)$`, refusal: actionRefusal }),
          Type.Integer({ minimum: 0, maximum: 31 }),
        ],
        {
          description: `Letters of \`${actions}\` (read, write, create, delete, control), or their bits as a number.`,
          refusal: actionRefusal,
        },
      ),
    ),
    org_feature: Name('A part of the organization.'),
    app_feature: Name('A part of the app.'),
    machine_feature: Name('A part of the machine.'),
    mutation: Name('The GraphQL mutation.'),
    command: Type.Optional(Type.Array(Type.String(), { description: 'The command to run in the machine.' })),
    storage_object: Name('An object in a store of the organization.'),
    source_machine: Name('The machine that asks.'),
  },
  { title: 'TokenAccess' },
)
export type TokenAccess = Static<typeof TokenAccess>

/** Returns the letters of an action, each once and in order. */
export function readAction(action: TokenAccess['action']): string {
  if (action === '*') return actions
  const isMeant = (letter: string, bit: number) =>
    typeof action === 'number' ? (action >> bit) & 1 : action?.includes(letter)
  return [...actions].filter(isMeant).join('')
}

type Field = keyof TokenAccess

const goTogether: [part: Field, whole: Field][] = [
  ['org_feature', 'org_slug'],
  ['storage_object', 'org_slug'],
  ['app_feature', 'app_name'],
  ['machine_feature', 'machine_id'],
  ['command', 'machine_id'],
]

const excludeEachOther: Field[][] = [
  ['org_feature', 'storage_object', 'app_name'],
  ['org_feature', 'storage_object', 'app_feature', 'machine_id', 'volume_id'],
  ['machine_feature', 'command'],
]

/** Requires exactly one object, together with the objects that contain it. */
export function checkAccess(access: TokenAccess): void {
  const isNamed = (field: Field) => access[field] !== undefined
  const objects: Field[] = ['org_slug', 'app_name', 'machine_id', 'volume_id']
  if (!objects.some(isNamed)) throw badRequest('access must name an organization, an app, a machine or a volume')
  for (const [part, whole] of goTogether)
    if (isNamed(part) && !isNamed(whole)) throw badRequest(`access.${part} requires access.${whole}`)
  for (const fields of excludeEachOther) {
    const [one, other] = fields.filter(isNamed)
    if (one && other) throw badRequest(`access.${one} and access.${other} exclude each other`)
  }
}

/** A caveat in the JSON format of clients. */
export interface ShownCaveat {
  type: string
  body: object
}

/** Describes the limits of a token as macaroon caveats. A root token has none. */
export function caveatsOf(token: ValidToken): ShownCaveat[] {
  const mask = token.kind === 'read' ? 'r' : actions
  const seconds = (time: Micros) => Number(time / 1_000_000n)
  const caveats: ShownCaveat[] = []
  if (token.orgNumericId !== null) caveats.push({ type: 'Organization', body: { id: token.orgNumericId, mask } })
  if (token.appNumericId !== null)
    caveats.push({ type: 'Apps', body: { apps: { [String(token.appNumericId)]: mask } } })
  if (token.expiresAt !== null) {
    const window = { not_before: seconds(token.createdAt), not_after: seconds(token.expiresAt) }
    caveats.push({ type: 'ValidityWindow', body: window })
  }
  return caveats
}

const setNames = {
  app: ['Apps', 'apps'],
  volume: ['Volumes', 'volumes'],
  machine: ['Machines', 'machines'],
  cluster: ['Clusters', 'clusters'],
  feature: ['FeatureSet', 'features'],
  appFeature: ['AppFeatureSet', 'features'],
  machineFeature: ['MachineFeatureSet', 'features'],
  storageObject: ['StorageObjects', 'prefixes'],
} as const

export function showCaveat(caveat: Caveat): ShownCaveat {
  switch (caveat.type) {
    case 'organization':
      return { type: 'Organization', body: { id: caveat.id, mask: lettersOf(caveat.mask) } }
    case 'set': {
      const [type, field] = setNames[caveat.kind]
      const masks = [...caveat.masks].map(([id, mask]) => [String(id), lettersOf(mask)])
      return { type, body: { [field]: Object.fromEntries(masks) } }
    }
    case 'mutations':
      return { type: 'Mutations', body: { mutations: caveat.names } }
    case 'commands':
      return { type: 'Commands', body: caveat.commands }
    case 'validity':
      return { type: 'ValidityWindow', body: { not_before: caveat.from, not_after: caveat.until } }
    case 'action':
      return { type: 'Action', body: { mask: lettersOf(caveat.mask) } }
    case 'roles':
      return { type: 'AllowedRoles', body: { mask: caveat.mask } }
    case 'user':
      return { type: 'IsUser', body: {} }
    case 'ifPresent': {
      const body = { ifs: caveat.caveats.map(showCaveat), else: lettersOf(caveat.otherwise) }
      return { type: 'IfPresent', body }
    }
    case 'unsatisfiable':
      return { type: 'Unsatisfiable', body: {} }
  }
}
