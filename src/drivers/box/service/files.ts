// The files of services: definitions, which the box can read but not change, and directories that the box writes.
import { chmodSync, chownSync, lstatSync, mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import type { BoxImage } from '../../../model/sandbox/box.ts'
import { type Service, type ServiceDefinition, startLevels } from '../../../model/sandbox/service.ts'
import { ensureDirectory, temporaryPath } from '../../host/atomic-file.ts'
import { shellQuote } from '../../host/shell.ts'
import {
  ensureUntrustedDirectory,
  inspectUntrustedFile,
  readUntrustedFile,
  withUntrustedDirectory,
} from '../../host/untrusted-file.ts'
import { readIsolationMode } from '../disk.ts'
import { boxPath, defaultEnvironment } from '../enter/enter.ts'
import { type BoxPaths, innerPathsOf, type ScriptPaths } from '../paths.ts'
import { toolPath } from '../tools.ts'
import { revisionOf } from './revision.ts'
import { errorLogName, renderErrorLog, renderService, type ServiceFiles } from './script.ts'

export interface ServiceBox {
  paths: BoxPaths
  /** The host uid of root in the box; undefined when everything runs as one user. */
  uid: number | undefined
  image?: BoxImage | undefined
}

export interface ServiceSettings {
  definition: Service
  /** The environment of the sandbox. */
  environment: Record<string, string>
  /** True when s6 must not start the service by itself. */
  down: boolean
}

/** The directories below `run` that s6 supervises for one service: the service and its two loggers. */
export function supervisedParts(name: string): string[] {
  return [name, `${name}/log`, errorLogName(name)]
}

/** The entries of one service in the scan directory. */
export function scannedEntries(name: string): string[] {
  return [errorLogName(name), name]
}

/** Writes the definition of the service where s6 finds it. Fails if the box has no directory any more. */
export function ensureFiles(box: ServiceBox, { definition, environment, down }: ServiceSettings): void {
  const { name } = definition
  const inner = scriptPaths(box)
  ensureUntrustedDirectory(box.paths.log, name, { mode: 0o755 })
  for (const stream of ['stdout', 'stderr'])
    ensureUntrustedDirectory(box.paths.log, `${name}/${stream}`, { mode: 0o755, uid: box.uid })
  ensureEntry(box, errorLogName(name), renderErrorLog(name, inner), [''])
  // The revision is written last: a service whose files are only partly of this definition is outdated.
  const files = { ...renderFiles(box, definition, environment), ...(down && { down: '' }) }
  ensureEntry(box, name, { ...files, definition: revisionOf(definition) }, ['', '/log'], ['state'])
  if (!definition.health)
    withUntrustedDirectory(box.paths.run, name, (directory) => rmSync(`${directory}/health`, { force: true }))
  markDown(box, name, down)
}

function renderFiles(box: ServiceBox, definition: Service, environment: Record<string, string>): ServiceFiles {
  const inner = scriptPaths(box)
  return renderService(definition, { ...defaultEnvironment(inner.home, box.image), ...environment }, inner)
}

/** Whether the files are those that `ensureFiles` writes. */
export function hasFiles(box: ServiceBox, { definition, environment, down }: ServiceSettings): boolean {
  const { name } = definition
  const isSame = ([file, text]: [string, string]) =>
    readUntrustedFile(box.paths.run, `${name}/${file}`, Buffer.byteLength(text))?.toString() === text
  const isMarkedDown = inspectUntrustedFile(box.paths.run, `${name}/down`) !== undefined
  return isMarkedDown === down && Object.entries(renderFiles(box, definition, environment)).every(isSame)
}

function scriptPaths({ paths, image }: ServiceBox): ScriptPaths {
  const inner = innerPathsOf(readIsolationMode(paths) === 'none' ? 'none' : 'bubblewrap', paths)
  const dir = image?.workingDir || inner.home
  if (image) return { ...inner, dir, shell: `${toolPath}/sh`, path: toolPath, prefix: `${toolPath}/` }
  return { ...inner, dir, shell: '/bin/sh', path: boxPath, prefix: '' }
}

/**
 * A new directory is renamed into place when it is complete; an existing one is changed file by file. It is below `run`,
 * which the box can write, because s6 does not follow links to the directories it writes. The directory itself belongs to
 * the host, and only its leaves to the box.
 */
function ensureEntry(
  box: ServiceBox,
  name: string,
  files: ServiceFiles,
  supervised: string[],
  leaves: string[] = [],
): void {
  const { paths } = box
  const directory = `${paths.run}/${name}`
  if (lstatSync(directory, { throwIfNoEntry: false })) {
    for (const [file, text] of Object.entries(files)) replaceFile(box, paths.run, `${name}/${file}`, text)
  } else
    makeEntry(box, directory, files, [
      ...leaves,
      ...supervised.flatMap((part) => [`${part}/supervise`, `${part}/event`]),
    ])
  if (!lstatSync(`${paths.service}/${name}`, { throwIfNoEntry: false }))
    symlinkSync(`../run/${name}`, `${paths.service}/${name}`)
}

function makeEntry(box: ServiceBox, directory: string, files: ServiceFiles, leaves: string[]): void {
  // Made where the box cannot see it.
  const fresh = temporaryPath(box.paths.directory)
  mkdirSync(fresh)
  try {
    for (const path of new Set([...leaves, ...Object.keys(files)].map((part) => dirname(`${fresh}/${part}`)))) {
      mkdirSync(path, { recursive: true })
      allowReading(box, path, 0o750)
    }
    for (const [file, text] of Object.entries(files)) writeHostFile(box, `${fresh}/${file}`, text)
    for (const leaf of leaves) ensureDirectory(`${fresh}/${leaf}`, { mode: 0o700, uid: box.uid })
    renameSync(fresh, directory)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    throw new Error(`make ${directory}`, { cause: error })
  }
}

/** Lets only root in the box read a file of the host, because environments hold secrets. */
function allowReading({ uid }: ServiceBox, path: string, mode: number): void {
  if (uid !== undefined) chownSync(path, 0, uid)
  chmodSync(path, mode)
}

function writeHostFile(box: ServiceBox, file: string, text: string): void {
  writeFileSync(file, text, { flag: 'wx', mode: 0o600 })
  allowReading(box, file, text.startsWith('#!') ? 0o750 : 0o640)
}

/** Replaces a file whose content differs. Without root, the box could replace the directories on the way. */
function replaceFile(box: ServiceBox, root: string, path: string, text: string): void {
  if (readUntrustedFile(root, path, Buffer.byteLength(text))?.toString() === text) return
  const isDone = withUntrustedDirectory(root, dirname(path), (directory) => {
    const fresh = temporaryPath(directory)
    writeHostFile(box, fresh, text)
    renameSync(fresh, `${directory}/${basename(path)}`)
    return true
  })
  if (!isDone) throw new Error(`${root}/${dirname(path)} is not a directory`)
}

/** Sets whether s6 starts the service by itself, also when the box starts again. */
export function markDown(box: ServiceBox, name: string, down: boolean): void {
  if (down) replaceFile(box, box.paths.run, `${name}/down`, '')
  else withUntrustedDirectory(box.paths.run, name, (directory) => rmSync(`${directory}/down`, { force: true }))
}

/** Sets the time after which a stop sends SIGKILL. s6 reads it at each stop. */
export function setStopTimeout(box: ServiceBox, name: string, timeoutMs: number): void {
  replaceFile(box, box.paths.run, `${name}/timeout-kill`, `${Math.max(1, Math.ceil(timeoutMs))}\n`)
}

/** Writes the script that stops services in reverse order of their dependencies when the box stops. */
export function ensureShutdown(box: ServiceBox, services: readonly ServiceDefinition[]): void {
  const { paths } = box
  const inner = scriptPaths(box)
  const levels = startLevels(services).slice(1).reverse()
  const steps = levels.flatMap((names) => [
    ...names.map((name) => `s6-svc -d ${shellQuote(name)}`),
    // A service that takes longer is stopped together with the last ones.
    `s6-svwait -D -t 3000 ${names.map(shellQuote).join(' ')}`,
  ])
  const lines = [
    `#!${inner.shell}`,
    `export PATH=${shellQuote(inner.path)}`,
    `cd ${shellQuote(inner.service)}`,
    ...steps,
  ]
  const text = `${[...lines, 'exec s6-svscanctl -t .'].join('\n')}\n`
  replaceFile(box, paths.directory, `${basename(paths.service)}/.shutdown`, text)
  // s6-svscan runs it instead of its default action for this signal.
  withUntrustedDirectory(paths.run, '.s6-svscan', (directory) => {
    const link = `${directory}/SIGTERM`
    if (!lstatSync(link, { throwIfNoEntry: false })) symlinkSync('../../service/.shutdown', link)
  })
}
