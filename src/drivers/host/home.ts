import { spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, realpathSync, rmSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { readOrCreate, readTextIfPresent } from './file.ts'
import { isRoot } from './process.ts'

export interface Home {
  path: string
  tree: string
  log: string
  run: string
  state: string
  toolchain: string
  cache: string
  keyFile: string
  tokenFile: string
  addressesFile: string
  /** Tells this home from the others on the machine, in names of the kernel's things and in uids. */
  number: number
  /** The first uid of this home's block; as an ordinary user there is no switching and it means nothing. */
  uidStart: number
}

export interface HomeOptions {
  uidBase: number
  /** Where homes of this machine note their numbers when root. */
  registry?: string
}

// Blocks of 1024 boxes with 65536 uids each. 63 of them above the default base fit below 2^32.
const homeCount = 63
export const uidsPerBox = 65_536
export const uidsPerHome = 1024 * uidsPerBox

/** `run/<32 characters>/.s.PGSQL.<port>` is the longest socket; the kernel takes 107 bytes and cuts the rest. */
const longestSocket = `/run/${'x'.repeat(32)}/.s.PGSQL.65535`
const maxSocketBytes = 107

export async function openHome(path: string, options: HomeOptions): Promise<Home> {
  const root = ensureRoot(resolve(path))
  refuseLongPath(root)
  if (isRoot()) refuseClosedParents(root)
  const number = isRoot() ? await ensureRegisteredNumber(root, options.registry) : ensureOwnNumber(root)
  const home = {
    path: root,
    tree: `${root}/tree`,
    log: `${root}/log`,
    run: `${root}/run`,
    state: `${root}/state`,
    toolchain: `${root}/toolchain`,
    cache: `${root}/cache`,
    keyFile: `${root}/key`,
    tokenFile: `${root}/token`,
    addressesFile: `${root}/run/addresses.json`,
    number,
    uidStart: options.uidBase + number * uidsPerHome,
  }
  for (const directory of [home.tree, home.log, home.cache]) ensureDirectory(directory, 0o700)
  for (const directory of [home.run, home.state]) ensureDirectory(directory, isRoot() ? 0o711 : 0o700)
  ensureDirectory(home.toolchain, 0o755)
  return home
}

function ensureDirectory(path: string, mode: number): void {
  mkdirSync(path, { recursive: true })
  // Not through mkdir, whose mode the umask narrows.
  if ((statSync(path).mode & 0o777) !== mode) chmodSync(path, mode)
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

function refuseLongPath(root: string): void {
  const most = maxSocketBytes - longestSocket.length
  const length = Buffer.byteLength(root)
  if (length <= most) return
  throw new Error(
    `The home ${root} has a path of ${length} bytes, and unix sockets below it allow ${most}: choose a shorter one`,
  )
}

function refuseClosedParents(root: string): void {
  for (let parent = dirname(root); parent !== '/'; parent = dirname(parent)) {
    if (isTraversable(parent)) continue
    throw new Error(
      `The home ${root} lies below ${parent}, which other users cannot traverse, and clusters and boxes run as users of their own: choose a home elsewhere or run chmod o+x ${parent}`,
    )
  }
}

// An ordinary user has no uids to give away and no place to agree with others; equal numbers only share names.
function ensureOwnNumber(root: string): number {
  const candidate = createHash('sha256').update(root).digest().readUInt32BE() % homeCount
  return Number(readOrCreate(`${root}/number`, () => String(candidate)))
}

async function ensureRegisteredNumber(root: string, registry = '/var/lib/berth-homes'): Promise<number> {
  ensureDirectory(registry, 0o755)
  const known = readNumber(root)
  if (known !== undefined && readEntry(registry, known) === root) return known
  return withLock(`${registry}/.lock`, () => {
    const number = claimNumber(registry, root)
    return Number(readOrCreate(`${root}/number`, () => String(number)))
  })
}

/** Only under the lock of the registry: looking at an entry and replacing it are two steps. */
function claimNumber(registry: string, root: string): number {
  const known = readNumber(root)
  const wanted = known === undefined ? candidates(registry, root) : [known]
  for (const number of wanted) {
    const holder = readEntry(registry, number)
    if (holder === root) return number
    if (holder !== undefined && isAlive(holder, number)) continue
    rmSync(`${registry}/${number}`, { force: true })
    readOrCreate(`${registry}/${number}`, () => root)
    return number
  }
  if (known === undefined)
    throw new Error(`All ${homeCount} numbers for homes on this machine are taken: see ${registry}`)
  throw new Error(
    `The home ${root} has the number ${known}, which belongs to ${readEntry(registry, known)}: two copies of one home cannot run on one machine`,
  )
}

// A claim that was interrupted left an entry with our path and no number in the home: it comes first.
function candidates(registry: string, root: string): number[] {
  const all = Array.from({ length: homeCount }, (_, number) => number)
  const own = all.filter((number) => readEntry(registry, number) === root)
  return [...own, ...all]
}

// A home without a number is one whose claim is not finished.
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
  if (!/^\d+$/.test(text) || number >= homeCount) throw new Error(`${root}/number does not hold a number of a home`)
  return number
}

/** The lock lives in a child that ends with our end of its pipe, so that no crash leaves it locked. */
async function withLock<T>(file: string, work: () => T): Promise<T> {
  const holder = spawn('flock', ['-w', '30', file, 'sh', '-c', 'echo locked; exec cat'], {
    stdio: ['pipe', 'pipe', 'ignore'],
    cwd: '/',
  })
  try {
    await new Promise<void>((resolve, reject) => {
      holder.stdout.once('data', () => resolve())
      holder.once('error', reject)
      holder.once('exit', (code) => reject(new Error(`lock ${file}: flock exited with ${code}`)))
    })
    return work()
  } finally {
    holder.stdin.end()
  }
}

/** The key that secrets are encrypted with. */
export function readOrCreateKey(home: Home): Buffer {
  const key = readOrCreate(home.keyFile, () => randomBytes(32))
  if (key.length !== 32) throw new Error(`The key in ${home.keyFile} has ${key.length} bytes instead of 32`)
  return key
}

export function readOrCreateToken(home: Home, make: () => string): string {
  return readOrCreate(home.tokenFile, () => `${make()}\n`)
    .toString()
    .trim()
}
