// The programs of the host that supervise services in a box made from an image, which may have no C library, no shell, or
// others than these need. They are copies in which the places of the loader, the libraries and each other are written
// over with places below /.berth, so that nothing of the image takes part and nothing shows in an environment.
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
import { freshName } from '../host/fresh.ts'
import { findCommand, run } from '../host/process.ts'
import type { BoxBase } from './base.ts'

const programs = [
  ...['s6-svscan', 's6-supervise', 's6-log', 's6-svc', 's6-svwait', 's6-svok', 's6-svstat', 's6-svscanctl'],
  ...['s6-ftrigrd', 'sh', 'bash', 'timeout', 'head', 'sleep', 'mkfifo'],
]

/** Inside, with the libraries beside it in `lib`. */
export const toolPath = '/.berth/bin'
const libraryPath = '/.berth/lib'
const loaderName = 'ld.so'

/** Beside the base, because both follow from the packages of the host. Made once. */
export async function ensureTools(base: BoxBase): Promise<string> {
  const directory = `${dirname(base.root)}/tools`
  if (existsSync(directory)) return directory
  const fresh = freshName(dirname(base.root))
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
  const found = programs.map((name) => ({ name, file: realpathSync(findCommand(name) ?? missing(name)) }))
  const loader = loaderOf(found[0]!.file)
  const libraries = new Map<string, string>()
  for (const { file } of found) for (const [name, path] of await librariesOf(loader, file)) libraries.set(name, path)
  const words = replacements(loader, [...new Set([...libraries.values()].map(dirname))])
  for (const directory of [fresh, `${fresh}/bin`, `${fresh}/lib`]) {
    mkdirSync(directory)
    chmodSync(directory, 0o755)
  }
  for (const { name, file } of found) copyWith(words, file, `${fresh}/bin/${name}`)
  for (const [name, file] of libraries) copyWith(words, file, `${fresh}/lib/${name}`)
  copyWith(words, loader, `${fresh}/lib/${loaderName}`)
}

function missing(name: string): never {
  throw new Error(`${name} is not installed`)
}

/** As the program names it. */
function loaderOf(file: string): string {
  const found = /\/lib[a-z0-9]*\/ld-linux[a-z0-9_.-]*(?=\0)/.exec(readFileSync(file, 'latin1'))
  if (!found) throw new Error(`${file} names no loader`)
  return found[0]
}

async function librariesOf(loader: string, file: string): Promise<[string, string][]> {
  const { stdout } = await run(loader, ['--list', file])
  return [...stdout.matchAll(/^\s*(\S+) => (\/\S+) /gm)].map(([, name, path]) => [name!, path!])
}

/** Each as long as what it stands for, because nothing in a program may move. */
function replacements(loader: string, libraryDirectories: string[]): [string, string][] {
  return [
    [loader, padded(loader, libraryPath, loaderName)],
    ...libraryDirectories.map((path): [string, string] => [`${path}/`, padded(`${path}/`, libraryPath)]),
    // What an image says about where libraries are is about other libraries.
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

function copyWith(words: [string, string][], from: string, to: string): void {
  const text = words.reduce((bytes, [old, own]) => bytes.replaceAll(old, own), readFileSync(from, 'latin1'))
  writeFileSync(to, text, 'latin1')
  chmodSync(to, 0o755)
}
