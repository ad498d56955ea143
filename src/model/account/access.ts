// What a request does to which resource, as the caveats of a token see it.

/** Read, write, create, delete and control: letters, in the order of their bits. */
export const actionLetters = 'rwcdC'

/** The bits of actions. */
export const action = { read: 1, write: 2, create: 4, delete: 8, control: 16, all: 31 } as const

export function actionBits(letters: string): number {
  return [...letters].reduce((bits, letter) => bits | (1 << actionLetters.indexOf(letter)), 0)
}

/** The reverse of `actionBits`; other bits are left out. */
export function lettersOf(bits: number): string {
  return [...actionLetters].filter((_letter, bit) => (bits >> bit) & 1).join('')
}

/** In place of an id: the request concerns all resources of this kind, so that only a caveat with a wildcard permits it. */
export const every = '*'

/** The id of a resource that is being created. Only a wildcard permits it. */
export const newNumber = 0
export const newName = ''

/** The resources of one kind are named by numbers (organizations and apps) or by texts. A kind that is absent is not concerned. */
export interface Access {
  /** Bits of `action`. */
  action: number
  org?: number | typeof every
  app?: number | typeof every
  machine?: string
  volume?: string
  cluster?: string
  /** A part of the organization beside its apps. */
  feature?: string
  /** A part of the app beside its machines and volumes. Berth has none, so that only `every` concerns them. */
  appFeature?: string
  /** A part of the machine, such as its metadata. */
  machineFeature?: string
  /** Berth stores no objects, so that only `every` concerns them. */
  storageObject?: string
  /** The program and arguments that are started in a machine. */
  command?: readonly string[]
  /** The GraphQL mutation. */
  mutation?: string
}

/** The parts of an organization that members without administrative rights may use. */
export const memberFeatures = ['postgres', 'sandbox'] as const
export type MemberFeature = (typeof memberFeatures)[number]

const everyPart = { machine: every, volume: every, appFeature: every } as const

/** An app with its machines and volumes. */
export function wholeApp(ids: { org: number; app: number }, bits: number): Access {
  return { action: bits, ...ids, ...everyPart }
}

/** An organization with everything in it. */
export function wholeOrg(org: Access['org'] & {}, bits: number): Access {
  const parts = { app: every, cluster: every, feature: every, storageObject: every } as const
  return { action: bits, org, ...everyPart, ...parts }
}

/** For operations that do not say what they concern. */
export function wholePlatform(bits: number): Access {
  return wholeOrg(every, bits)
}
