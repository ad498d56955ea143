// The files of services: definitions, which the box can read and not change, and beside them directories of the box.
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'
import { type ServiceDefinition, startLevels } from '../../../model/sandbox/service.ts'
import { readTextIfPresent } from '../../host/file.ts'
import { ensureDirectory, freshName } from '../../host/fresh.ts'
import { quote } from '../../host/shell.ts'
import { readWay } from '../disk.ts'
import type { BoxImage } from '../driver.ts'
import { boxPath, usualEnvironment } from '../enter/enter.ts'
import { type BoxPaths, innerPathsOf, type ScriptPlaces } from '../paths.ts'
import { toolPath } from '../tools.ts'
import { errorLogName, renderErrorLog, renderService, type ServiceFiles } from './script.ts'

export interface ServicePlace {
  paths: BoxPaths
  /** The root of the box; undefined where everything runs as one user. */
  uid: number | undefined
  image?: BoxImage | undefined
}

export interface ServiceText {
  definition: ServiceDefinition
  /** Variables of the sandbox. */
  environment: Record<string, string>
  /** Not started by the supervisor itself. */
  down: boolean
}

/** What is supervised for one service, as directories below `run`: itself and what writes its output to disk. */
export function supervisedParts(name: string): string[] {
  return [name, `${name}/log`, errorLogName(name)]
}

/** The entries of the scan directory that belong to one service. */
export function scannedEntries(name: string): string[] {
  return [errorLogName(name), name]
}

/** Afterwards the supervisor finds the service by these definitions. */
export function ensureFiles(place: ServicePlace, { definition, environment, down }: ServiceText): void {
  const { name } = definition
  const inner = scriptPlacesOf(place)
  for (const stream of ['stdout', 'stderr']) ensureLeaf(place, `${place.paths.log}/${name}/${stream}`)
  ensureEntry(place, errorLogName(name), renderErrorLog(name, inner), [''])
  const variables = { ...usualEnvironment(inner.home, place.image), ...environment }
  const files = { ...renderService(definition, variables, inner), ...(down && { down: '' }) }
  ensureEntry(place, name, files, ['', '/log'], ['state'])
  if (!definition.health) rmSync(`${place.paths.run}/${name}/health`, { force: true })
  markDown(place, name, down)
}

export function scriptPlacesOf({ paths, image }: ServicePlace): ScriptPlaces {
  const inner = innerPathsOf(readWay(paths) === 'none' ? 'none' : 'bubblewrap', paths)
  const dir = image?.workingDir || inner.home
  if (image) return { ...inner, dir, shell: `${toolPath}/sh`, path: toolPath, prefix: `${toolPath}/` }
  return { ...inner, dir, shell: '/bin/sh', path: boxPath, prefix: '' }
}

function ensureLeaf({ uid }: ServicePlace, leaf: string): void {
  if (existsSync(leaf)) return
  ensureDirectory(dirname(leaf), { mode: 0o755 })
  ensureDirectory(leaf, { mode: 0o755, uid })
}

/**
 * A new directory appears whole; one that is there is changed file by file. It lies where the box can write, because s6
 * takes no links to what it writes, but belongs to the host: of what is in it only the leaves are the box's.
 */
function ensureEntry(
  place: ServicePlace,
  name: string,
  files: ServiceFiles,
  watched: string[],
  leaves: string[] = [],
): void {
  const { paths } = place
  const directory = `${paths.run}/${name}`
  if (existsSync(directory)) {
    for (const [file, text] of Object.entries(files)) {
      if (readTextIfPresent(`${directory}/${file}`) !== text) replaceFile(place, `${directory}/${file}`, text)
    }
  } else
    makeEntry(place, directory, files, [
      ...leaves,
      ...watched.flatMap((part) => [`${part}/supervise`, `${part}/event`]),
    ])
  if (!lstatSync(`${paths.service}/${name}`, { throwIfNoEntry: false }))
    symlinkSync(`../run/${name}`, `${paths.service}/${name}`)
}

function makeEntry(place: ServicePlace, directory: string, files: ServiceFiles, leaves: string[]): void {
  const fresh = freshName(dirname(directory))
  try {
    for (const path of new Set([...leaves, ...Object.keys(files)].map((part) => dirname(`${fresh}/${part}`)))) {
      mkdirSync(path, { recursive: true })
      giveToReaders(place, path, 0o750)
    }
    for (const [file, text] of Object.entries(files)) writeHostFile(place, `${fresh}/${file}`, text)
    for (const leaf of leaves) ensureDirectory(`${fresh}/${leaf}`, { mode: 0o700, uid: place.uid })
    renameSync(fresh, directory)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    throw new Error(`make ${directory}`, { cause: error })
  }
}

/** Ours, and readable by the root of the box alone: environments hold secrets. */
function giveToReaders({ uid }: ServicePlace, path: string, mode: number): void {
  if (uid !== undefined) chownSync(path, 0, uid)
  chmodSync(path, mode)
}

function writeHostFile(place: ServicePlace, file: string, text: string): void {
  writeFileSync(file, text, { flag: 'wx', mode: 0o600 })
  giveToReaders(place, file, text.startsWith('#!') ? 0o750 : 0o640)
}

function replaceFile(place: ServicePlace, file: string, text: string): void {
  const fresh = freshName(dirname(file))
  writeHostFile(place, fresh, text)
  renameSync(fresh, file)
}

/** Whether the supervisor starts it by itself, also when the box starts again. */
export function markDown(place: ServicePlace, name: string, down: boolean): void {
  const file = `${place.paths.run}/${name}/down`
  if (!down) rmSync(file, { force: true })
  else if (!existsSync(file)) writeHostFile(place, file, '')
}

/** After this long a stop ends with SIGKILL. The supervisor reads it with each stop. */
export function setStopTime(place: ServicePlace, name: string, timeoutMs: number): void {
  const file = `${place.paths.run}/${name}/timeout-kill`
  const text = `${Math.max(1, Math.ceil(timeoutMs))}\n`
  if (readTextIfPresent(file) !== text) replaceFile(place, file, text)
}

/** When the whole box stops, what needs others ends before them. The last ones, and all the rest, end together. */
export function ensureShutdown(place: ServicePlace, services: readonly ServiceDefinition[]): void {
  const { paths } = place
  const inner = scriptPlacesOf(place)
  const levels = startLevels(services).slice(1).reverse()
  const steps = levels.flatMap((names) => [
    ...names.map((name) => `s6-svc -d ${quote(name)}`),
    // What takes longer is ended with the rest.
    `s6-svwait -D -t 3000 ${names.map(quote).join(' ')}`,
  ])
  const lines = [`#!${inner.shell}`, `export PATH=${quote(inner.path)}`, `cd ${quote(inner.service)}`, ...steps]
  const script = `${paths.service}/.shutdown`
  const text = `${[...lines, 'exec s6-svscanctl -t .'].join('\n')}\n`
  if (readTextIfPresent(script) !== text) replaceFile(place, script, text)
  // The supervisor runs it instead of what it does by itself at this signal.
  const link = `${paths.run}/.s6-svscan/SIGTERM`
  if (!lstatSync(link, { throwIfNoEntry: false })) symlinkSync('../../service/.shutdown', link)
}
