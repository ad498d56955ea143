// The repository in a directory of a local or mounted filesystem:
//   <root>/<cluster>/archive/<epoch>/000000010000000000000007…
//   <root>/<cluster>/backups/<label>/{data/,backup.json}
//   <root>/<cluster>/cluster.json
//   <root>/.platform/…
// All of it belongs to the platform alone. A name without a dot in front stands for something whole.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, renameSync } from 'node:fs'
import { open, readFile, rm, stat, statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { type Lsn, parseSegmentName, segmentName, segmentNumber, segmentStart } from '../../model/postgres/wal.ts'
import { readTextIfPresent } from '../host/file.ts'
import { ensureDirectory, freshName, removeAbandoned } from '../host/fresh.ts'
import { baseEnvironment, run } from '../host/process.ts'
import type { BackupDescription, ClusterDescription, Repository, WalFile, WalStretch } from './driver.ts'
import { platformFiles } from './platform.ts'
import { findArchiveEnd, planWal } from './wal.ts'
import { findTail } from './wal-tail.ts'

const owned = { mode: 0o700 }
// All that is dirty in the filesystem goes to the disk with the backup.
const syncSeconds = 600

export function fileRepository(root: string): Repository {
  const place = placesOf(root)
  const list = (id: string, epoch: number) => listArchive(place.archive(id, epoch))
  return {
    async ensureArchive(id, epoch) {
      ensureDirectories(root, place.cluster(id), `${place.cluster(id)}/archive`, place.archive(id, epoch))
      return place.archive(id, epoch)
    },
    listArchive: list,
    archiveEnd: async (id, epoch, timeline, from) => findArchiveEnd(await list(id, epoch), timeline, from),
    async archiveTail(id, epoch, timeline, from) {
      const end = findArchiveEnd(await list(id, epoch), timeline, from)
      if (end === undefined) return undefined
      const read = (number: bigint) => readSegment(place.archive(id, epoch), segmentName(timeline, number))
      return findTail(read, segmentNumber(from), segmentNumber(end) - 1n)
    },
    removeWalBefore: (id, epoch, before, kept) => removeWalBefore(place.archive(id, epoch), before, kept),
    removeArchive: async (id, epoch) => discard(root, place.archive(id, epoch)),

    async stageBackup(id, label) {
      const staged = place.staged(id, label)
      discard(root, staged)
      ensureDirectories(root, place.cluster(id), `${place.cluster(id)}/backups`, staged)
      return staged
    },
    listStaged: async (id) => listStaged(`${place.cluster(id)}/backups`),
    stagedBackup: place.staged,
    commitBackup: (description) => commitBackup(root, place, description),
    discardStaged: async (id, label) => discard(root, place.staged(id, label)),
    findBackup: async (id, label) => findBackup(place.backup(id, label)),
    listBackups: async (id) => listBackups(`${place.cluster(id)}/backups`),
    removeBackup: async (id, label) => discard(root, place.backup(id, label)),
    backupData: (id, label) => `${place.backup(id, label)}/data`,

    planWal: (pieces, from) => planWal({ list, path: place.archive }, pieces, from),

    async describeCluster(id, description) {
      ensureDirectories(root, place.cluster(id))
      await removeAbandoned(place.cluster(id))
      await replaceDurably(place.cluster(id), 'cluster.json', toText(description))
    },
    findDescription: async (id) => readDescription(`${place.cluster(id)}/cluster.json`),
    listClusters: async () => listNames(root).filter((name) => idForm.test(name)),
    removeCluster: async (id) => discard(root, place.cluster(id)),
    async freeBytes() {
      ensureDirectories(root)
      const { bavail, bsize } = await statfs(root)
      return bavail * bsize
    },
    ...platformFiles(root),
  }
}

const idForm = /^[a-z0-9]{16}$/
const stagedMark = '.staged~'
const labelForm = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/

type Places = ReturnType<typeof placesOf>

// Every path goes through these checks, so that no name leaves its directory.
function placesOf(root: string) {
  function cluster(id: string): string {
    if (!idForm.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
    return `${root}/${id}`
  }
  function backup(id: string, label: string, prefix = ''): string {
    if (!labelForm.test(label)) throw new Error(`not the label of a backup: ${JSON.stringify(label)}`)
    return `${cluster(id)}/backups/${prefix}${label}`
  }
  return {
    cluster,
    backup: (id: string, label: string) => backup(id, label),
    staged: (id: string, label: string) => backup(id, label, stagedMark),
    archive(id: string, epoch: number): string {
      if (!Number.isSafeInteger(epoch) || epoch < 0) throw new Error(`not an epoch: ${epoch}`)
      return `${cluster(id)}/archive/${epoch}`
    },
  }
}

function ensureDirectories(...paths: string[]): void {
  for (const path of paths) ensureDirectory(path, owned)
}

function listStaged(directory: string): string[] {
  if (!existsSync(directory)) return []
  const names = readdirSync(directory).filter((name) => name.startsWith(stagedMark))
  return names.map((name) => name.slice(stagedMark.length))
}

/** The names that stand for something; none when there is no such directory. */
function listNames(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory)
    .filter((name) => !name.startsWith('.'))
    .sort()
}

// Between the listing and the look at a file the receiver may have finished a segment, which renames it. A second look
// is enough: that happens once in the time of many listings.
async function listArchive(directory: string): Promise<WalFile[]> {
  const once = async () => Promise.all(listNames(directory).map((name) => lookAt(directory, name)))
  const found = await once()
  return (found.includes(undefined) ? await once() : found).filter((file) => file !== undefined)
}

async function lookAt(directory: string, name: string): Promise<WalFile | undefined> {
  try {
    return { name, bytes: (await stat(`${directory}/${name}`)).size }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

async function readSegment(directory: string, name: string): Promise<Buffer> {
  return readFile(`${directory}/${name}`).catch(() => readFile(`${directory}/${name}.partial`))
}

// Names sort by place within a timeline. Stopped anywhere, what is left is still without a gap it should not have.
async function removeWalBefore(directory: string, before: Lsn, kept: WalStretch[] = []): Promise<number> {
  const endsBefore = (name: string) => {
    const segment = parseSegmentName(name)
    if (segment === undefined || segmentStart(segment.number + 1n) > before) return false
    return !kept.some(({ from, to }) => segmentNumber(from) <= segment.number && segment.number <= segmentNumber(to))
  }
  const names = listNames(directory).filter(endsBefore)
  for (const name of names) await rm(`${directory}/${name}`, { force: true })
  return names.length
}

async function commitBackup(root: string, place: Places, description: BackupDescription): Promise<void> {
  const { clusterId, label } = description
  const staged = place.staged(clusterId, label)
  const kept = findBackup(place.backup(clusterId, label))
  if (kept !== undefined) {
    if (!isDeepStrictEqual(kept, plain(description))) throw new Error(`Backup ${label} of ${clusterId} exists already`)
    return discard(root, staged)
  }
  if (!existsSync(`${staged}/data`)) throw new Error(`Backup ${label} of ${clusterId} is not staged`)
  await writeDurably(`${staged}/backup.json`, toText(description))
  await run('sync', ['-f', staged], { timeoutSeconds: syncSeconds })
  renameSync(staged, place.backup(clusterId, label))
  await syncDirectory(`${place.cluster(clusterId)}/backups`)
}

function plain(description: BackupDescription): unknown {
  return JSON.parse(JSON.stringify(description))
}

function toText(description: BackupDescription | ClusterDescription): string {
  return `${JSON.stringify(description, null, 2)}\n`
}

async function replaceDurably(directory: string, name: string, text: string): Promise<void> {
  const fresh = freshName(directory)
  try {
    await writeDurably(fresh, text)
    renameSync(fresh, `${directory}/${name}`)
    await syncDirectory(directory)
  } catch (cause) {
    await rm(fresh, { force: true })
    throw new Error(`keep ${name} in ${directory}`, { cause })
  }
}

async function writeDurably(file: string, text: string): Promise<void> {
  await using handle = await open(file, 'w', 0o600)
  await handle.writeFile(text)
  await handle.sync()
}

async function syncDirectory(path: string): Promise<void> {
  await using handle = await open(path, 'r')
  await handle.sync()
}

function findBackup(directory: string): BackupDescription | undefined {
  return readDescription(`${directory}/backup.json`)
}

function readDescription<T extends BackupDescription | ClusterDescription>(file: string): T | undefined {
  const text = readTextIfPresent(file)
  if (text === undefined) return undefined
  try {
    return JSON.parse(text)
  } catch (cause) {
    throw new Error(`read the description in ${dirname(file)}`, { cause })
  }
}

function listBackups(directory: string): BackupDescription[] {
  return listNames(directory)
    .map((label) => findBackup(`${directory}/${label}`))
    .filter((description) => description !== undefined)
    .sort((a, b) => (a.startedAt < b.startedAt ? -1 : 1))
}

/**
 * Afterwards nothing is at the path. It is renamed away, which takes no time and is final, and deleted by a process that
 * does not depend on ours, together with what an earlier one did not come to.
 */
function discard(root: string, path: string): void {
  const trash = `${root}/.trash`
  ensureDirectories(root, trash)
  try {
    renameSync(path, `${trash}/${randomBytes(8).toString('hex')}`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  if (readdirSync(trash).length > 0) empty(trash)
}

function empty(directory: string): void {
  const child = spawn('nice', ['-n', '19', 'find', directory, '-mindepth', '1', '-delete'], {
    detached: true,
    stdio: 'ignore',
    env: baseEnvironment,
    cwd: '/',
  })
  child.on('error', () => undefined)
  child.unref()
}
