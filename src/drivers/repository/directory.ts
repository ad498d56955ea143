// A repository in a directory of a local or mounted file system:
//   <root>/<cluster>/archive/<epoch>/000000010000000000000007…
//   <root>/<cluster>/archive/<epoch>.end, <epoch>.seals
//   <root>/<cluster>/backups/<label>/{data/,backup.json}
//   <root>/<cluster>/cluster.json
//   <root>/.platform/…
// Only the platform has access to it. Names that start with a dot are incomplete or internal; all others are complete.
import { existsSync, statSync } from 'node:fs'
import { lstat, rm, statfs } from 'node:fs/promises'
import { setImmediate } from 'node:timers/promises'
import type { LogDamage } from '../../model/postgres/log-damage.ts'
import {
  type Lsn,
  parseSegmentName,
  segmentBytes,
  segmentName,
  segmentNumber,
  segmentStart,
} from '../../model/postgres/wal.ts'
import { removeAbandonedFiles } from '../host/atomic-file.ts'
import { run } from '../host/process.ts'
import { readUntrustedFile } from '../host/untrusted-file.ts'
import {
  commitBackup,
  findBackup,
  findDescription,
  findForeignBackup,
  listBackups,
  listStaged,
  syncTimeoutSeconds,
  toJson,
} from './backup.ts'
import { type Repository, type WalFile, WalFileError, type WalRange } from './driver.ts'
import { replaceDurably } from './durable-file.ts'
import type { EndRecord } from './end.ts'
import { discard, ensureDirectories, idPattern, listNames, repositoryPaths, workDirectory } from './paths.ts'
import { platformFiles } from './platform.ts'
import { findMissingDirectory, notMounted, walFileError } from './presence.ts'
import { findArchiveEnd, findHole, planWal } from './wal.ts'
import { findCut, findStepBack } from './wal-cut.ts'
import { findAltered, findIntactTail, type SegmentSequence } from './wal-intact.ts'
import { type ArchiveFiles, endRecorder, findEnd, findSeals, trimSeals } from './wal-record.ts'
import { segmentSealer } from './wal-seal.ts'
import { isIntact, listSealed, sealedReader } from './wal-sealed.ts'

export function directoryRepository(root: string): Repository {
  const paths = repositoryPaths(root)
  const list = (id: string, epoch: number) => listArchive(paths.archive(id, epoch))
  const reader = (id: string, epoch: number, timeline: number) => (number: bigint) =>
    readSegment(filesOf(id, epoch), segmentName(timeline, number))
  const recorder = endRecorder()
  const sealer = segmentSealer()
  const filesOf = (id: string, epoch: number): ArchiveFiles => ({
    clusterId: id,
    epoch,
    directory: paths.archive(id, epoch),
    parent: `${paths.cluster(id)}/archive`,
    endName: `${epoch}.end`,
    sealsName: `${epoch}.seals`,
    list: () => list(id, epoch),
  })
  async function sequenceOf(id: string, epoch: number, timeline: number, from: Lsn) {
    const end = findArchiveEnd(await list(id, epoch), timeline, from)
    return end === undefined ? undefined : segmentSequence(filesOf(id, epoch), timeline, from, end)
  }
  return {
    async ensureArchive(id, epoch, owner) {
      ensureDirectories(root, paths.cluster(id), `${paths.cluster(id)}/archive`)
      await ensureOwned(paths.archive(id, epoch), owner)
      return paths.archive(id, epoch)
    },
    listArchive: list,
    archiveEnd: async (id, epoch, timeline, from) => findArchiveEnd(await list(id, epoch), timeline, from),
    async archiveTail(id, epoch, timeline, from, before) {
      const log = await sequenceOf(id, epoch, timeline, from)
      if (log === undefined) return undefined
      const record = readEnd(filesOf(id, epoch))
      if (!('unreadable' in record)) return findIntactTail(log, record.end, before)
      const tail = await findIntactTail(log, undefined, before)
      const damage: LogDamage = { position: tail?.end ?? from, recorded: undefined, reason: record.unreadable }
      return { end: from, newestCommit: undefined, ...tail, damage }
    },
    findHole: async (id, epoch, timeline, range) => findHole(await list(id, epoch), timeline, range),
    findCut: async (id, epoch, timeline, time, range) => {
      const read = sealedReader(filesOf(id, epoch), timeline, reader(id, epoch, timeline))
      return findCut(read, timeline, time, range)
    },
    findStepBack: (id, epoch, timeline, range) => findStepBack(reader(id, epoch, timeline), range),
    recordEnd: (id, epoch, end) => recorder.recordEnd(filesOf(id, epoch), end),
    findRecordedEnd: async (id, epoch) => findEnd(filesOf(id, epoch)),
    sealSegments: (id, epoch, timeline, before) =>
      sealer.sealSegments(filesOf(id, epoch), reader(id, epoch, timeline), timeline, before),
    listSealed: async (id, epoch, timeline, range, limit) => listSealed(filesOf(id, epoch), timeline, range, limit),
    isIntact: (id, epoch, hole) => isIntact(filesOf(id, epoch), hole),
    async findAlteredSegment(id, epoch, timeline, from) {
      const log = await sequenceOf(id, epoch, timeline, from)
      return log && findAltered(log, findSeals(filesOf(id, epoch)))
    },
    removeWalBefore: (id, epoch, before, kept) => removeWalBefore(filesOf(id, epoch), before, kept),
    async removeArchive(id, epoch) {
      const { directory, parent, endName, sealsName } = filesOf(id, epoch)
      discard(root, directory)
      for (const name of [endName, sealsName]) await rm(`${parent}/${name}`, { force: true })
    },

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
    findBackup: async (id, label) => findBackup(paths, id, label),
    listBackups: async (id) => listBackups(paths, id).backups,
    listUnusableBackups: async (id) => listBackups(paths, id).problems,
    findForeignBackup: async (id, label) => findForeignBackup(paths, id, label),
    removeBackup: async (id, label) => discard(root, paths.backup(id, label)),
    backupData: (id, label) => `${paths.backup(id, label)}/data`,
    findMissingBackup: (id, label) => findMissingDirectory(`${paths.cluster(id)}/backups`, label, 'data'),

    planWal: (pieces, from) => planWal({ list, path: paths.archive, files: filesOf }, pieces, from),

    async describeCluster(id, description) {
      ensureDirectories(root, paths.cluster(id))
      await removeAbandonedFiles(paths.cluster(id))
      await replaceDurably(paths.cluster(id), 'cluster.json', toJson(description))
    },
    findDescription: async (id) => findDescription(paths, id),
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

// The owner differs in a repository that comes from another host or from before a restore of the state database.
async function ensureOwned(directory: string, owner: number | undefined): Promise<void> {
  ensureDirectories(directory)
  if (owner === undefined || statSync(directory).uid === owner) return
  await run('chown', ['-R', `${owner}:${owner}`, directory], { timeoutSeconds: syncTimeoutSeconds })
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

async function readSegment({ directory, clusterId }: ArchiveFiles, name: string): Promise<Buffer> {
  // A search reads many of them, each within one turn of the event loop.
  await setImmediate()
  if (!existsSync(directory)) throw notMounted(directory)
  const read = (file: string) => readUntrustedFile(directory, file, Number(segmentBytes))
  const subject = `WAL segment ${name} of ${clusterId}`
  try {
    // The receiver may rename it between the first two attempts.
    const bytes = read(name) ?? read(`${name}.partial`) ?? read(name)
    if (bytes !== undefined) return bytes
  } catch (error) {
    throw walFileError(name, subject, error)
  }
  const isThere = listNames(directory).some((file) => file === name || file === `${name}.partial`)
  if (isThere) throw new WalFileError('damaged', name, `${subject} is not a file of the right size`)
  throw new WalFileError('missing', name, `${subject} is missing from its archive`)
}

// Names of a timeline sort by position, and the oldest are removed first, so an interruption leaves no gap.
async function removeWalBefore(files: ArchiveFiles, before: Lsn, kept: WalRange[] = []): Promise<number> {
  const { directory } = files
  const endsBefore = (name: string) => {
    const segment = parseSegmentName(name)
    if (segment === undefined || segmentStart(segment.number + 1n) > before) return false
    return !kept.some(({ from, to }) => segmentNumber(from) <= segment.number && segment.number <= segmentNumber(to))
  }
  const names = listNames(directory).filter(endsBefore)
  for (const name of names) await rm(`${directory}/${name}`, { force: true })
  if (names.length > 0) await trimSeals(files, new Set(names))
  return names.length
}

/** An unreadable record must not be taken for a missing one, because the log may be damaged too. */
function readEnd(files: ArchiveFiles): { end: EndRecord | undefined } | { unreadable: string } {
  try {
    return { end: findEnd(files) }
  } catch (error) {
    return { unreadable: `the record of its end is not readable: ${(error as Error).message}` }
  }
}

function segmentSequence(files: ArchiveFiles, timeline: number, from: Lsn, end: Lsn): SegmentSequence {
  const read = (number: bigint) => readSegment(files, segmentName(timeline, number))
  return { directory: files.directory, timeline, from, last: segmentNumber(end) - 1n, read }
}
