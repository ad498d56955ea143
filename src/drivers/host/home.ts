import { createHash, randomBytes } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, realpathSync, rmSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { ensureDirectory } from './atomic-file.ts'
import { readOrCreate, readTextIfPresent, replaceFile } from './file.ts'
import { withLock } from './lock.ts'
import { isRoot } from './process.ts'

/** The directory that holds everything of one platform, and its paths. */
export interface Home {
  path: string
  tree: string
  log: string
  run: string
  state: string
  toolchain: string
  cache: string
  /** An empty directory at which a machine finds its own directory, in its mount namespace. */
  mount: string
  keyFile: string
  tokenFile: string
  addressesFile: string
  /** Distinguishes the homes of one host in names of kernel objects and in uids. */
  number: number
  /** The first uid of this home's range. It is not used without root, when everything runs as one user. */
  uidStart: number
}

export interface HomeOptions {
  uidBase: number
  /** The directory in which root registers the numbers of the homes of this host. */
  registry?: string
}

// A home has uids for 1024 boxes with 65536 each. With the default base, 63 homes fit below 2^32.
const maxHomes = 63
export const uidsPerBox = 65_536
export const uidsPerHome = 1024 * uidsPerBox

/**
 * The uid of the edge. The range below that of the boxes has the state database first, then the clusters, and the edge last.
 */
export function edgeUid(home: Pick<Home, 'uidStart'>): number {
  return home.uidStart + uidsPerBox - 1
}

/**
 * Directories that only root may traverse, because they hold files of tenants, among them setuid programs, or the base of
 * all sandboxes, in which `/tmp` is writable for everyone. The directory of each sandbox has a mode of its own.
 */
const closedDirectories = ['machine', 'machine-log', 'image', 'volume', 'snapshot', 'trash', 'sandbox-base']

/** The longest socket path is `run/<32 characters>/.s.PGSQL.<port>`. The kernel truncates paths after 107 bytes. */
const longestSocket = `/run/${'x'.repeat(32)}/.s.PGSQL.65535`
const maxSocketBytes = 107

export async function openHome(path: string, options: HomeOptions): Promise<Home> {
  const root = ensureRoot(resolve(path))
  rejectLongPath(root)
  if (isRoot()) rejectClosedParents(root)
  const number = isRoot() ? await ensureRegisteredNumber(root, options.registry) : ensureOwnNumber(root)
  const home = {
    path: root,
    tree: `${root}/tree`,
    log: `${root}/log`,
    run: `${root}/run`,
    state: `${root}/state`,
    toolchain: `${root}/toolchain`,
    cache: `${root}/cache`,
    mount: `${root}/mount`,
    keyFile: `${root}/key`,
    tokenFile: `${root}/token`,
    addressesFile: `${root}/run/addresses.json`,
    number,
    uidStart: options.uidBase + number * uidsPerHome,
  }
  for (const directory of [home.tree, home.log, home.cache, ...closedDirectories.map((name) => `${root}/${name}`)])
    ensureDirectory(directory, { mode: 0o700 })
  for (const directory of [home.run, home.state, `${root}/sandbox`, home.mount])
    ensureDirectory(directory, { mode: isRoot() ? 0o711 : 0o700 })
  ensureDirectory(home.toolchain, { mode: 0o755 })
  return home
}

function ensureRoot(path: string): string {
  if (!existsSync(path)) {
    mkdirSync(path, { recursive: true })
    chmodSync(path, isRoot() ? 0o711 : 0o700)
  }
  const root = realpathSync(path)
  if (isRoot() && !isTraversable(root)) chmodSync(root, 0o711)
  return root
}

function isTraversable(directory: string): boolean {
  return (statSync(directory).mode & 0o001) !== 0
}

function rejectLongPath(root: string): void {
  const maxLength = maxSocketBytes - longestSocket.length
  const length = Buffer.byteLength(root)
  if (length <= maxLength) return
  throw new Error(
    `The home ${root} has a path of ${length} bytes, and unix sockets below it allow ${maxLength}: choose a shorter one`,
  )
}

function rejectClosedParents(root: string): void {
  for (let parent = dirname(root); parent !== '/'; parent = dirname(parent)) {
    if (isTraversable(parent)) continue
    throw new Error(
      `The home ${root} lies below ${parent}, which other users cannot traverse, and clusters and boxes run as users of their own: choose a home elsewhere or run chmod o+x ${parent}`,
    )
  }
}

// Without root there are no uids to assign and no registry to share. Homes with the same number only share names.
function ensureOwnNumber(root: string): number {
  const candidate = createHash('sha256').update(root).digest().readUInt32BE() % maxHomes
  return Number(readOrCreate(`${root}/number`, () => String(candidate)))
}

async function ensureRegisteredNumber(root: string, registry = '/var/lib/berth-homes'): Promise<number> {
  ensureDirectory(registry, { mode: 0o755 })
  const known = readNumber(root)
  if (known !== undefined && readEntry(registry, known) === root) return known
  return withLock(`${registry}/.lock`, () => {
    const number = claimNumber(registry, root)
    return Number(readOrCreate(`${root}/number`, () => String(number)))
  })
}

/** The caller must hold the lock of the registry: reading an entry and replacing it are two steps. */
function claimNumber(registry: string, root: string): number {
  const known = readNumber(root)
  const numbers = known === undefined ? candidates(registry, root) : [known]
  for (const number of numbers) {
    const holder = readEntry(registry, number)
    if (holder === root) return number
    if (holder !== undefined && isAlive(holder, number)) continue
    rmSync(`${registry}/${number}`, { force: true })
    readOrCreate(`${registry}/${number}`, () => root)
    return number
  }
  if (known === undefined)
    throw new Error(`All ${maxHomes} numbers for homes on this machine are taken: see ${registry}`)
  throw new Error(
    `The home ${root} has the number ${known}, which belongs to ${readEntry(registry, known)}: two copies of one home cannot run on one machine`,
  )
}

// An interrupted claim leaves an entry with our path, and no number in the home. That number is used first.
function candidates(registry: string, root: string): number[] {
  const all = Array.from({ length: maxHomes }, (_, number) => number)
  const own = all.filter((number) => readEntry(registry, number) === root)
  return [...own, ...all]
}

// A home without a number has not finished its claim.
function isAlive(path: string, number: number): boolean {
  return existsSync(path) && [number, undefined].includes(readNumber(path))
}

function readEntry(registry: string, number: number): string | undefined {
  return readTextIfPresent(`${registry}/${number}`)
}

function readNumber(root: string): number | undefined {
  const text = readTextIfPresent(`${root}/number`)
  if (text === undefined) return undefined
  const number = Number(text)
  if (!/^\d+$/.test(text) || number >= maxHomes) throw new Error(`${root}/number does not contain a home number`)
  return number
}

/** Returns the key that secrets are encrypted with. */
export function readOrCreateKey(home: Home): Buffer {
  const key = readOrCreate(home.keyFile, () => randomBytes(32))
  if (key.length !== 32) throw new Error(`The key in ${home.keyFile} has ${key.length} bytes instead of 32`)
  return key
}

export function writeToken(home: Home, token: string): void {
  replaceFile(home.tokenFile, `${token}\n`)
}

export function readOrCreateToken(home: Home, make: () => string): string {
  return readOrCreate(home.tokenFile, () => `${make()}\n`)
    .toString()
    .trim()
}
