// Finds or installs the PostgreSQL binaries of a major version: those of the operator, those from npm, or those of the
// distribution, which has extensions that the ones from npm lack. Those from npm are copied into the home, because clusters
// run as users that may have no access to node_modules, and an update of it must not change a running cluster.
import { createHash } from 'node:crypto'
import { constants, existsSync, readFileSync, readlinkSync } from 'node:fs'
import { chmod, copyFile, mkdir, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { PostgresMajor } from '../../../model/postgres/cluster.ts'
import { findExtensionPackage } from '../../../model/postgres/extension.ts'
import type { PostgresSource, Toolchain } from '../../../model/postgres/toolchain.ts'
import { removeAbandonedFiles, temporaryPath } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { isExecutable, run } from '../../host/process.ts'
import { hasExtension, listExtensions, toolsDirectory } from './tools.ts'

export interface ToolchainOptions {
  /** The directory of the `postgres` program of the operator's own installation. */
  configuredBin?: string | undefined
  /** Where the distribution has its installations, in directories named after their major version. */
  distribution?: string | undefined
  /** Which one to use if both have the extensions. */
  prefer?: PostgresSource | undefined
  /** Extensions that the installation must have. */
  extensions?: readonly string[] | undefined
  /** Verifies the hashes of a copy in the home and replaces a damaged one. Takes about 0.2 s. */
  verify?: boolean
}

interface Manifest {
  version: string
  files: Record<string, string>
  links: Record<string, string>
}

export interface Package {
  native: string
  version: string
}

export async function ensureToolchain(
  major: PostgresMajor,
  home: Home,
  options: ToolchainOptions = {},
): Promise<Toolchain> {
  if (options.configuredBin !== undefined) return installed(major, home, 'configured', options.configuredBin)
  const { prefer = 'bundled', extensions = [], distribution } = options
  const bundled = await findPackage(major)
  const bin = findDistributionBin(major, distribution)
  const isComplete = (share: string) => extensions.every((name) => hasExtension({ share }, name))
  const useBundled = bundled !== undefined && isComplete(`${bundled.native}/share/postgresql`)
  const useDistribution = bin !== undefined && isComplete(findShare(bin))
  if (useDistribution && (prefer === 'distribution' || !useBundled)) return installed(major, home, 'distribution', bin)
  if (useBundled) return ensureCopy(major, home, bundled, options.verify ?? false)
  throw new Error(describeMissing(major, bundled || bin ? extensions : []))
}

function describeMissing(major: PostgresMajor, extensions: readonly string[]): string {
  const install = `install the package postgresql-${major}, or set BERTH_PG${major}_BIN`
  if (extensions.length === 0) {
    return `PostgreSQL ${major} was not found: run npm ci (without --omit=optional), ${install}`
  }
  const packages = extensions.map((name) => findExtensionPackage(name, major) ?? name)
  return `PostgreSQL ${major} with ${extensions.join(' and ')} was not found: install ${packages.join(' ')}`
}

/** Where Debian and Ubuntu install PostgreSQL. */
export const debianDirectory = '/usr/lib/postgresql'

/** The directory of the server programs of the distribution; undefined if they are not installed. */
export function findDistributionBin(major: PostgresMajor, directory = debianDirectory): string | undefined {
  const bin = `${directory}/${major}/bin`
  return isExecutable(`${bin}/postgres`) ? bin : undefined
}

async function installed(
  major: PostgresMajor,
  home: Home,
  source: Toolchain['source'],
  bin: string,
): Promise<Toolchain> {
  const { stdout } = await run(`${bin}/postgres`, ['--version']).catch((cause) => {
    throw new Error(`PostgreSQL ${major} in ${bin} does not run`, { cause })
  })
  const version = /\(PostgreSQL\) (\S+)/.exec(stdout)?.[1] ?? ''
  if (version.split('.')[0] !== major) throw new Error(`${bin} contains PostgreSQL ${version}, not ${major}`)
  return { major, version, source, bin, share: findShare(bin), tools: await toolsDirectory(home, bin) }
}

// Debian separates it from the binaries; a build from source has it beside them.
function findShare(bin: string): string {
  const debian = bin.replace(/\/lib\/postgresql\/(\d+)\/bin\/?$/, '/share/postgresql/$1')
  const candidates = [debian, join(bin, '../share/postgresql'), join(bin, '../share')]
  const share = candidates.find((directory) => existsSync(`${directory}/postgres.bki`))
  if (share === undefined) throw new Error(`The PostgreSQL in ${bin} lacks its share directory`)
  return share
}

/** The share directory of the operator's or the distribution's installation; undefined if there is none. */
export function findInstalledShare(
  major: PostgresMajor,
  { configuredBin, distribution }: Pick<ToolchainOptions, 'configuredBin' | 'distribution'>,
): string | undefined {
  const bin = configuredBin ?? findDistributionBin(major, distribution)
  return bin !== undefined && isExecutable(`${bin}/postgres`) ? findShare(bin) : undefined
}

/** Lists the extensions of all installations that clusters may use. */
export function listInstalledExtensions(major: PostgresMajor, options: ToolchainOptions): Set<string> {
  const installed = findInstalledShare(major, options)
  const bundled = options.configuredBin === undefined ? `${packageDirectory(major)}/native/share/postgresql` : undefined
  return new Set([installed, bundled].flatMap((share) => (share === undefined ? [] : listExtensions({ share }))))
}

/** Finds the npm package with the server programs; undefined if it is not installed. */
export async function findPackage(major: PostgresMajor): Promise<Package | undefined> {
  const directory = packageDirectory(major)
  if (!existsSync(`${directory}/native/bin/postgres`)) return undefined
  const { version } = JSON.parse(await readFile(`${directory}/package.json`, 'utf8'))
  return { native: `${directory}/native`, version }
}

function packageDirectory(major: PostgresMajor): string {
  const name = `pg${major}-${process.platform}-${process.arch}`
  return fileURLToPath(new URL(`../../../../node_modules/${name}`, import.meta.url))
}

async function ensureCopy(major: PostgresMajor, home: Home, from: Package, verify: boolean): Promise<Toolchain> {
  const directory = `${home.toolchain}/postgres-${from.version}`
  if (verify && existsSync(directory) && (await listDamage(directory)).length > 0) await removeCopy(directory)
  // The directory appears by a rename after the manifest was written, so a manifest means that the copy is complete.
  if (!existsSync(manifestOf(directory))) await installCopy(from, directory)
  const version = from.version.split('.').slice(0, 2).join('.')
  const bin = `${directory}/bin`
  const tools = await toolsDirectory(home, bin)
  return { major, version, source: 'npm', bin, share: `${directory}/share/postgresql`, tools }
}

function manifestOf(directory: string): string {
  return `${directory}/manifest.json`
}

async function installCopy(from: Package, directory: string): Promise<void> {
  await removeAbandonedFiles(dirname(directory))
  const fresh = temporaryPath(dirname(directory))
  try {
    await fillCopy(from, fresh)
    // A directory without a manifest is the remains of a removal.
    if (existsSync(directory) && !existsSync(manifestOf(directory))) await removeCopy(directory)
    await rename(fresh, directory)
  } catch (cause) {
    await rm(fresh, { recursive: true, force: true })
    // Another process may have installed it first.
    if (!existsSync(manifestOf(directory))) throw new Error(`install PostgreSQL ${from.version}`, { cause })
  }
}

async function fillCopy(from: Package, target: string): Promise<void> {
  const files = await copyFiles(from.native, target)
  const links = await makeLinks(from.native, target)
  const manifest: Manifest = { version: from.version, files, links }
  await writeFile(manifestOf(target), JSON.stringify(manifest))
  await chmod(manifestOf(target), 0o644)
  // One flush of the file system is faster than syncing a thousand files.
  await run('sync', ['-f', target])
}

async function copyFiles(source: string, target: string): Promise<Record<string, string>> {
  const files: Record<string, string> = {}
  await makeDirectory(target)
  for (const entry of await readdir(source, { recursive: true, withFileTypes: true })) {
    const path = relative(source, join(entry.parentPath, entry.name))
    if (entry.isDirectory()) await makeDirectory(join(target, path))
    if (entry.isFile()) files[path] = await copyOne(join(source, path), join(target, path))
  }
  return files
}

// The mode is set separately, because the umask restricts the one given to mkdir.
async function makeDirectory(path: string): Promise<void> {
  await mkdir(path, { recursive: true })
  await chmod(path, 0o755)
}

async function copyOne(source: string, target: string): Promise<string> {
  await mkdir(dirname(target), { recursive: true })
  await copyFile(source, target, constants.COPYFILE_FICLONE)
  const isProgram = ((await stat(source)).mode & 0o100) !== 0
  await chmod(target, isProgram ? 0o755 : 0o644)
  return hashFile(source)
}

// npm packages cannot contain symbolic links, so the package lists them in a file.
async function makeLinks(source: string, target: string): Promise<Record<string, string>> {
  const listed: { source: string; target: string }[] = JSON.parse(await readFile(`${source}/pg-symlinks.json`, 'utf8'))
  const links: Record<string, string> = {}
  for (const link of listed) {
    const path = relative('native', link.target)
    links[path] = relative(dirname(link.target), link.source)
    await symlink(links[path], join(target, path))
  }
  return links
}

async function hashFile(path: string): Promise<string> {
  // Reads whole files: the largest has 26 MB, and streams for a thousand small ones would take three times as long.
  return createHash('sha256')
    .update(await readFile(path))
    .digest('hex')
}

/** Lists missing and changed files of our copy from npm; other installations are not checked. */
export async function verifyToolchain(toolchain: Toolchain): Promise<string[]> {
  return toolchain.source === 'npm' ? listDamage(dirname(toolchain.bin)) : []
}

async function listDamage(directory: string): Promise<string[]> {
  const manifest = readManifest(directory)
  if (manifest === undefined) return ['manifest.json']
  const damaged: string[] = []
  for (const [path, hash] of Object.entries(manifest.files)) {
    if ((await hashFile(join(directory, path)).catch(() => undefined)) !== hash) damaged.push(path)
  }
  const links = Object.entries(manifest.links).filter(([path, target]) => readLink(join(directory, path)) !== target)
  return [...damaged, ...links.map(([path]) => path)]
}

function readManifest(directory: string): Manifest | undefined {
  try {
    return JSON.parse(readFileSync(manifestOf(directory), 'utf8'))
  } catch {
    return undefined
  }
}

function readLink(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch {
    return undefined
  }
}

// Renamed first, so that no process starts from a half-deleted copy; running processes keep their open files.
async function removeCopy(directory: string): Promise<void> {
  const removed = temporaryPath(dirname(directory))
  await rename(directory, removed).catch((error: NodeJS.ErrnoException) => {
    // Another process may have found the same damage and removed the copy.
    if (error.code !== 'ENOENT') throw error
  })
  await rm(removed, { recursive: true, force: true })
}
