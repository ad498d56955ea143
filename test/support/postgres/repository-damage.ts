// Copies of a cluster in a repository under other ids, and the ways to damage them.
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  globSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname } from 'node:path'
import { crc32c } from '../../../src/model/postgres/crc32c.ts'

export const parts = [
  'base',
  'manifest',
  'early segment',
  'late segment',
  'partial segment',
  'history',
  'backup.json',
  'cluster.json',
  'end',
  'seals',
] as const
export type Part = (typeof parts)[number]

/** What a damaged disk can change below a running cluster: these files are complete, and nothing writes to them any more. */
export const completeParts = ['base', 'manifest', 'early segment', 'late segment', 'history', 'backup.json'] as const

export const ways = ['flip', 'delete', 'truncate', 'foreign'] as const
export type Way = (typeof ways)[number]

/** Replaces a file, because other copies may have links to it. */
function replace(path: string, bytes: Buffer | string): void {
  const { uid, gid, mode } = statSync(path)
  rmSync(path)
  writeFileSync(path, bytes)
  chownSync(path, uid, gid)
  chmodSync(path, mode & 0o777)
}

/** Copies a cluster as it is now; the receiver goes on writing to the original. */
export function takeTemplate(from: string, to: string): void {
  execFileSync('cp', ['-a', '--sparse=always', from, to])
}

/** Makes a copy of a template that belongs to a cluster with another id and name. */
export function cloneCluster(template: string, repository: string, id: string, name: string): string {
  const directory = `${repository}/${id}`
  execFileSync('cp', ['-al', template, directory])
  const original = JSON.parse(readFileSync(`${directory}/cluster.json`, 'utf8')).clusterId
  for (const path of globSync(`${directory}/{cluster.json,backups/*/backup.json}`)) {
    const described = JSON.parse(readFileSync(path, 'utf8').replaceAll(original, id))
    replace(path, JSON.stringify({ ...described, clusterName: name }))
  }
  for (const path of globSync(`${directory}/archive/*.seals`))
    replace(path, readFileSync(path, 'utf8').replaceAll(original, id))
  for (const path of globSync(`${directory}/archive/*.end`)) {
    const line = readFileSync(path, 'utf8').split('\n')[0]!.replaceAll(original, id)
    replace(path, `${line}\n${crc32c(Buffer.from(line)).toString(16).padStart(8, '0')}\n`)
  }
  return directory
}

/** The file of this kind, relative to the directory of the cluster; undefined if there is none. */
function findPart(directory: string, part: Part, pick: (count: number) => number): string | undefined {
  const chosen = (pattern: string) => {
    const found = globSync(pattern, { cwd: directory }).sort()
    return found[pick(found.length)]
  }
  const segments = readdirSync(`${directory}/archive/1`).filter((name) => /^[0-9A-F]{24}$/.test(name))
  switch (part) {
    case 'base':
      return chosen('backups/*/data/base/*/[0-9]*[0-9]')
    case 'manifest':
      return chosen('backups/*/data/backup_manifest')
    case 'early segment':
      return `archive/1/${segments.sort()[pick(Math.ceil(segments.length / 2))]}`
    case 'late segment':
      return `archive/1/${segments.sort().at(-1)}`
    case 'partial segment':
      return chosen('archive/1/*.partial')
    case 'history':
      return chosen('archive/1/*.history')
    case 'backup.json':
      return chosen('backups/*/backup.json')
    case 'cluster.json':
      return 'cluster.json'
    default:
      return `archive/1.${part}`
  }
}

export interface Made {
  /** Relative to the directory of the cluster. */
  file: string
  /** Puts the file back. */
  undo: () => void
  /** What a failure that names the damage contains. */
  named: RegExp
}

/** Damages a file of a copy. A foreign file is that of a sibling, which was restored from the same source. */
export function damage(
  directory: string,
  sibling: string,
  part: Part,
  way: Way,
  pick: (count: number) => number,
): Made {
  const file = findPart(directory, part, pick)
  if (file === undefined) throw new Error(`the copy has no ${part}`)
  const path = `${directory}/${file}`
  const undo = keeper(path)
  if (way === 'delete') rmSync(path)
  else if (way === 'foreign') replace(path, readFileSync(foreignOf(sibling, file)))
  else replace(path, changed(readFileSync(path), way, lengthInUse(directory, part), pick))
  return { file, undo, named: namesOf(file) }
}

function keeper(path: string): () => void {
  const { uid, gid, mode } = statSync(path)
  const bytes = readFileSync(path)
  return () => {
    // The platform ignores names that start with a dot.
    const fresh = `${dirname(path)}/.${basename(path)}`
    writeFileSync(fresh, bytes)
    chownSync(fresh, uid, gid)
    chmodSync(fresh, mode & 0o777)
    renameSync(fresh, path)
  }
}

function changed(bytes: Buffer, way: Way, used: number | undefined, pick: (count: number) => number): Buffer {
  const length = Math.min(used ?? bytes.length, bytes.length)
  const at = pick(length)
  if (way === 'truncate') return bytes.subarray(0, at)
  if (length > 0) bytes[at]! ^= 1 << pick(8)
  return bytes
}

/** The receiver fills the last segment with zeros, whose change no one needs to notice. */
function lengthInUse(directory: string, part: Part): number | undefined {
  if (part !== 'partial segment') return undefined
  const { end } = JSON.parse(readFileSync(`${directory}/archive/1.end`, 'utf8').split('\n')[0]!)
  return Number(BigInt(`0x${end.split('/')[1]}`) % (16n * 1024n * 1024n))
}

/** The file of the sibling in the same place, or at least one of the same kind. */
function foreignOf(sibling: string, file: string): string {
  const same = globSync(file.replace(/^backups\/[^/]+/, 'backups/*'), { cwd: sibling })[0]
  const kind = file.startsWith('archive/1/')
    ? file.replace(/\/[0-9A-F]{16,24}/, '/[0-9A-F]*[0-9A-F]')
    : 'backups/*/data/PG_VERSION'
  const other = same ?? globSync(kind, { cwd: sibling }).sort().at(-1)
  if (other === undefined) throw new Error(`the sibling has no file like ${file}`)
  return `${sibling}/${other}`
}

function namesOf(file: string): RegExp {
  const [kind, label, ...rest] = file.split('/')
  if (kind === 'backups') {
    const name = rest.join('/').replace(/^data\//, '')
    return new RegExp(name === 'backup.json' ? `${label}|description` : `${label}|${name}|manifest`)
  }
  if (kind === 'cluster.json') return /cluster\.json|description/
  if (file.endsWith('.end')) return /end of|recorded/
  if (file.endsWith('.seals')) return /seals/
  const name = file.slice('archive/1/'.length).replace('.partial', '')
  return name.endsWith('.history') ? new RegExp(name) : new RegExp(`${name}|${positionsIn(name)}`)
}

/** Positions in a segment, and in the one before it, where a record may begin that ends in this one. */
function positionsIn(segment: string): string {
  const log = Number.parseInt(segment.slice(8, 16), 16).toString(16).toUpperCase()
  const number = Number.parseInt(segment.slice(16), 16)
  const lows = [number - 1, number].map((low) => low.toString(16).toUpperCase())
  return lows.map((low) => `\\b${log}/${low}[0-9A-F]{6}\\b`).join('|')
}
