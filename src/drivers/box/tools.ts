// Programs of the host that supervise services in a box made from an image, which may have no shell or another C
// library. In the copies, the paths of the loader, the libraries and other programs are overwritten with paths below
// /.berth, so that they use nothing of the image and need no environment variables.
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { temporaryPath } from '../host/atomic-file.ts'
import { findCommand, run } from '../host/process.ts'
import type { BoxBase } from './base.ts'

const programs = [
  ...['s6-svscan', 's6-supervise', 's6-log', 's6-svc', 's6-svwait', 's6-svok', 's6-svstat', 's6-svscanctl'],
  ...['s6-ftrigrd', 'sh', 'bash', 'timeout', 'head', 'sleep', 'mkfifo'],
]

/** The path inside the box. */
export const toolPath = '/.berth/bin'
const libraryPath = '/.berth/lib'
const loaderName = 'ld.so'

/** Makes the copies once for each base, because both depend on the packages of the host. */
export async function ensureTools(base: BoxBase): Promise<string> {
  const directory = `${dirname(base.root)}/tools`
  if (existsSync(directory)) return directory
  const fresh = temporaryPath(dirname(base.root))
  try {
    await makeTools(fresh)
    renameSync(fresh, directory)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process made it first.
    if (!existsSync(directory)) throw new Error('copy the programs that supervise services', { cause: error })
  }
  return directory
}

async function makeTools(fresh: string): Promise<void> {
  const found = programs.map((name) => ({ name, file: realpathSync(findCommand(name) ?? failMissing(name)) }))
  const loader = loaderOf(found[0]!.file)
  const libraries = new Map<string, string>()
  for (const { file } of found) for (const [name, path] of await librariesOf(loader, file)) libraries.set(name, path)
  const substitutions = pathSubstitutions(loader, [...new Set([...libraries.values()].map(dirname))])
  for (const directory of [fresh, `${fresh}/bin`, `${fresh}/lib`]) {
    mkdirSync(directory)
    chmodSync(directory, 0o755)
  }
  for (const { name, file } of found) copyWith(substitutions, file, `${fresh}/bin/${name}`)
  for (const [name, file] of libraries) copyWith(substitutions, file, `${fresh}/lib/${name}`)
  copyWith(substitutions, loader, `${fresh}/lib/${loaderName}`)
}

function failMissing(name: string): never {
  throw new Error(`${name} is not installed`)
}

/** The path of the dynamic loader that is recorded in the program. */
function loaderOf(file: string): string {
  const found = /\/lib[a-z0-9]*\/ld-linux[a-z0-9_.-]*(?=\0)/.exec(readFileSync(file, 'latin1'))
  if (!found) throw new Error(`${file} names no loader`)
  return found[0]
}

async function librariesOf(loader: string, file: string): Promise<[string, string][]> {
  const { stdout } = await run(loader, ['--list', file])
  return [...stdout.matchAll(/^\s*(\S+) => (\/\S+) /gm)].map(([, name, path]) => [name!, path!])
}

/** Each replacement is as long as the original, because offsets in an executable must not change. */
function pathSubstitutions(loader: string, libraryDirectories: string[]): [string, string][] {
  return [
    [loader, padded(loader, libraryPath, loaderName)],
    ...libraryDirectories.map((path): [string, string] => [`${path}/`, padded(`${path}/`, libraryPath)]),
    // The library cache of the image lists other libraries.
    ['/etc/ld.so.cache', '/.berth/ld.cache'],
    ['/etc/ld.so.preload', '/.berth/ld.preload'],
    ['/usr/bin/s6', '/.berth//s6'],
  ]
}

function padded(text: string, directory: string, name = ''): string {
  const slashes = text.length - directory.length - name.length
  if (slashes < 1) throw new Error(`${text} has no room for ${directory}`)
  return `${directory}${'/'.repeat(slashes)}${name}`
}

function copyWith(substitutions: [string, string][], from: string, to: string): void {
  const text = substitutions.reduce(
    (bytes, [original, replacement]) => bytes.replaceAll(original, replacement),
    readFileSync(from, 'latin1'),
  )
  writeFileSync(to, text, 'latin1')
  chmodSync(to, 0o755)
}
