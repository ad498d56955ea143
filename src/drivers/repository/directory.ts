// A repository in a directory of a local or mounted file system:
//   <root>/<cluster>/archive/<epoch>/000000010000000000000007…
//   <root>/<cluster>/backups/<label>/{data/,backup.json}
//   <root>/<cluster>/cluster.json
//   <root>/.platform/…
// Only the platform has access to it. Names that start with a dot are incomplete or internal; all others are complete.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, renameSync, statSync } from 'node:fs'
import { lstat, open, rm, statfs } from 'node:fs/promises'
import { dirname } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import {
  type Lsn,
  parseSegmentName,
  segmentBytes,
  segmentName,
  segmentNumber,
  segmentStart,
} from '../../model/postgres/wal.ts'
import { ensureDirectory, removeAbandonedFiles, temporaryPath } from '../host/atomic-file.ts'
import { readTextIfPresent } from '../host/file.ts'
import { baseEnvironment, run } from '../host/process.ts'
import { inspectUntrustedFile, readUntrustedFile } from '../host/untrusted-file.ts'
import {
  type BackupDescription,
  type ClusterDescription,
  type Repository,
  type WalFile,
  WalFileError,
  type WalRange,
} from './driver.ts'
import { platformFiles } from './platform.ts'
import { findMissingDirectory, walFileError } from './presence.ts'
import { findArchiveEnd, findHole, planWal } from './wal.ts'
import { findCut, findStepBack } from './wal-cut.ts'
import { findTail } from './wal-tail.ts'

const privateMode = { mode: 0o700 }
// syncfs flushes all dirty data of the file system, not only that of the backup.
const syncTimeoutSeconds = 600

export function directoryRepository(root: string): Repository {
  const paths = repositoryPaths(root)
  const list = (id: string, epoch: number) => listArchive(paths.archive(id, epoch))
  const reader = (id: string, epoch: number, timeline: number) => (number: bigint) =>
    readSegment(paths.archive(id, epoch), segmentName(timeline, number))
  return {
    async ensureArchive(id, epoch, owner) {
      ensureDirectories(root, paths.cluster(id), `${paths.cluster(id)}/archive`)
      await ensureOwned(paths.archive(id, epoch), owner)
      return paths.archive(id, epoch)
    },
    listArchive: list,
    archiveEnd: async (id, epoch, timeline, from) => findArchiveEnd(await list(id, epoch), timeline, from),
    async archiveTail(id, epoch, timeline, from) {
      const end = findArchiveEnd(await list(id, epoch), timeline, from)
      if (end === undefined) return undefined
      return findTail(reader(id, epoch, timeline), segmentNumber(from), segmentNumber(end) - 1n)
    },
    findHole: async (id, epoch, timeline, range) => findHole(await list(id, epoch), timeline, range),
    findCut: (id, epoch, timeline, time, range) => findCut(reader(id, epoch, timeline), timeline, time, range),
    findStepBack: (id, epoch, timeline, range) => findStepBack(reader(id, epoch, timeline), range),
    removeWalBefore: (id, epoch, before, kept) => removeWalBefore(paths.archive(id, epoch), before, kept),
    removeArchive: async (id, epoch) => discard(root, paths.archive(id, epoch)),

    async stageBackup(id, label, owner) {
      const staged = paths.staged(id, label)
      discard(root, staged)
      ensureDirectories(root, paths.cluster(id), `${paths.cluster(id)}/backups`, staged)
      await ensureOwned(workDirectory(staged), owner)
      return workDirectory(staged)
    },
    listStaged: async (id) => listStaged(`${paths.cluster(id)}/backups`),
    stagedBackup: (id, label) => workDirectory(paths.staged(id, label)),
    commitBackup: (description) => commitBackup(root, paths, description),
    discardStaged: async (id, label) => discard(root, paths.staged(id, label)),
    findBackup: async (id, label) => findBackup(paths.backup(id, label)),
    listBackups: async (id) => listBackups(`${paths.cluster(id)}/backups`),
    removeBackup: async (id, label) => discard(root, paths.backup(id, label)),
    backupData: (id, label) => `${paths.backup(id, label)}/data`,
    findMissingBackup: (id, label) => findMissingDirectory(`${paths.cluster(id)}/backups`, label, 'data'),

    planWal: (pieces, from) => planWal({ list, path: paths.archive }, pieces, from),

    async describeCluster(id, description) {
      ensureDirectories(root, paths.cluster(id))
      await removeAbandonedFiles(paths.cluster(id))
      await replaceDurably(paths.cluster(id), 'cluster.json', toJson(description))
    },
    findDescription: async (id) => readDescription(`${paths.cluster(id)}/cluster.json`),
    listClusters: async () => listNames(root).filter((name) => idPattern.test(name)),
    removeCluster: async (id) => discard(root, paths.cluster(id)),
    async freeBytes() {
      ensureDirectories(root)
      const { bavail, bsize } = await statfs(root)
      return bavail * bsize
    },
    ...platformFiles(root),
  }
}

const idPattern = /^[a-z0-9]{16}$/
const stagedPrefix = '.staged~'
const labelPattern = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/

type RepositoryPaths = ReturnType<typeof repositoryPaths>

// Checks every name, so that no path leaves its directory.
function repositoryPaths(root: string) {
  function cluster(id: string): string {
    if (!idPattern.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
    return `${root}/${id}`
  }
  function backup(id: string, label: string, prefix = ''): string {
    if (!labelPattern.test(label)) throw new Error(`not the label of a backup: ${JSON.stringify(label)}`)
    return `${cluster(id)}/backups/${prefix}${label}`
  }
  return {
    cluster,
    backup: (id: string, label: string) => backup(id, label),
    staged: (id: string, label: string) => backup(id, label, stagedPrefix),
    archive(id: string, epoch: number): string {
      if (!Number.isSafeInteger(epoch) || epoch < 0) throw new Error(`not an epoch: ${epoch}`)
      return `${cluster(id)}/archive/${epoch}`
    },
  }
}

// The platform's own files of a backup are beside this directory, where its owner cannot replace them.
function workDirectory(staged: string): string {
  return `${staged}/work`
}

// The owner differs in a repository that comes from another host or from before a restore of the state database.
async function ensureOwned(directory: string, owner: number | undefined): Promise<void> {
  ensureDirectories(directory)
  if (owner === undefined || statSync(directory).uid === owner) return
  await run('chown', ['-R', `${owner}:${owner}`, directory], { timeoutSeconds: syncTimeoutSeconds })
}

function ensureDirectories(...paths: string[]): void {
  for (const path of paths) ensureDirectory(path, privateMode)
}

function listStaged(directory: string): string[] {
  if (!existsSync(directory)) return []
  const names = readdirSync(directory).filter((name) => name.startsWith(stagedPrefix))
  return names.map((name) => name.slice(stagedPrefix.length))
}

/** Lists complete entries; none if the directory does not exist. */
function listNames(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory)
    .filter((name) => !name.startsWith('.'))
    .sort()
}

// The receiver renames a segment when it is complete, perhaps between the listing and the stat. One retry is enough,
// because listing takes much less time than filling a segment.
async function listArchive(directory: string): Promise<WalFile[]> {
  const list = async () => Promise.all(listNames(directory).map((name) => findFile(directory, name)))
  const found = await list()
  return (found.includes(undefined) ? await list() : found).filter((file) => file !== undefined)
}

async function findFile(directory: string, name: string): Promise<WalFile | undefined> {
  try {
    const found = await lstat(`${directory}/${name}`)
    return found.isFile() ? { name, bytes: found.size } : undefined
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

async function readSegment(directory: string, name: string): Promise<Buffer> {
  const read = (file: string) => readUntrustedFile(directory, file, Number(segmentBytes))
  const subject = `WAL segment ${name} in ${directory}`
  try {
    // The receiver may rename it between the first two attempts.
    const bytes = read(name) ?? read(`${name}.partial`) ?? read(name)
    if (bytes === undefined) throw new WalFileError('damaged', name, `${subject} is not a file of the right size`)
    return bytes
  } catch (error) {
    throw walFileError(name, subject, error)
  }
}

// Names of a timeline sort by position, and the oldest are removed first, so an interruption leaves no gap.
async function removeWalBefore(directory: string, before: Lsn, kept: WalRange[] = []): Promise<number> {
  const endsBefore = (name: string) => {
    const segment = parseSegmentName(name)
    if (segment === undefined || segmentStart(segment.number + 1n) > before) return false
    return !kept.some(({ from, to }) => segmentNumber(from) <= segment.number && segment.number <= segmentNumber(to))
  }
  const names = listNames(directory).filter(endsBefore)
  for (const name of names) await rm(`${directory}/${name}`, { force: true })
  return names.length
}

async function commitBackup(root: string, paths: RepositoryPaths, description: BackupDescription): Promise<void> {
  const { clusterId, label } = description
  const staged = paths.staged(clusterId, label)
  const kept = findBackup(paths.backup(clusterId, label))
  if (kept !== undefined) {
    if (!isDeepStrictEqual(kept, withoutUndefined(description)))
      throw new Error(`backup ${label} of ${clusterId} exists already`)
    return discard(root, staged)
  }
  const data = `${staged}/data`
  // Already moved if an earlier call was interrupted.
  if (inspectUntrustedFile(workDirectory(staged), 'data')?.isDirectory())
    renameSync(`${workDirectory(staged)}/data`, data)
  if (!existsSync(data)) throw new Error(`backup ${label} of ${clusterId} is not staged`)
  await rm(workDirectory(staged), { recursive: true, force: true })
  await writeDurably(`${staged}/backup.json`, toJson(description))
  await run('sync', ['-f', staged], { timeoutSeconds: syncTimeoutSeconds })
  renameSync(staged, paths.backup(clusterId, label))
  await syncDirectory(`${paths.cluster(clusterId)}/backups`)
}

function withoutUndefined(description: BackupDescription): unknown {
  return JSON.parse(JSON.stringify(description))
}

function toJson(description: BackupDescription | ClusterDescription): string {
  return `${JSON.stringify(description, null, 2)}\n`
}

async function replaceDurably(directory: string, name: string, text: string): Promise<void> {
  const fresh = temporaryPath(directory)
  try {
    await writeDurably(fresh, text)
    renameSync(fresh, `${directory}/${name}`)
    await syncDirectory(directory)
  } catch (cause) {
    await rm(fresh, { force: true })
    throw new Error(`write ${name} in ${directory}`, { cause })
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
 * Removes a path at once by renaming it into the trash. A detached process empties the trash, including what an earlier
 * one left.
 */
function discard(root: string, path: string): void {
  const trash = `${root}/.trash`
  ensureDirectories(root, trash)
  try {
    renameSync(path, `${trash}/${randomBytes(8).toString('hex')}`)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  }
  if (readdirSync(trash).length > 0) emptyTrash(trash)
}

function emptyTrash(directory: string): void {
  const child = spawn('nice', ['-n', '19', 'find', directory, '-mindepth', '1', '-delete'], {
    detached: true,
    stdio: 'ignore',
    env: baseEnvironment,
    cwd: '/',
  })
  child.on('error', () => undefined)
  child.unref()
}
