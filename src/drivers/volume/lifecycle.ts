// A volume is a disk with a filesystem in a sparse file, so that the filesystem keeps its size, in `volume/<id>`. Where
// nothing can be mounted it is a directory, and nobody keeps its size. Snapshots are copies in `snapshot/<id>`.
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs'
import { ensureDirectory, freshName } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { commandExists, findCommand, isRoot, run, waitUntil } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { discard, sweepTrash } from '../host/trash.ts'
import { type JobDriver, type JobState, withoutTime } from '../s6/job.ts'
import type { VolumeDriver, VolumeMeasure, VolumeWork } from './driver.ts'
import { findLoop, statMounted } from './mounted.ts'
import { readSuperblock } from './superblock.ts'

export interface VolumeParts {
  home: Home
  jobs: JobDriver
  /** Instead of what this host can do. */
  canMount?: boolean
}

interface Opened extends VolumeParts {
  mounts(): Promise<boolean>
}

export function volumeDriver(parts: VolumeParts): VolumeDriver {
  let probed: Promise<boolean> | undefined
  const opened: Opened = {
    ...parts,
    mounts() {
      probed ??= parts.canMount === undefined ? probe(parts.home) : Promise.resolve(parts.canMount)
      return probed
    },
  }
  const { home } = parts
  return {
    enforcesSize: () => opened.mounts(),
    growsAtStart: async () => !growsMounted() && (await opened.mounts()),
    ensureVolume: (volume) => ensureVolume(opened, volume),
    extendVolume: (id, sizeGb) => extend(volumePlace(home, id), sizeGb),
    measureVolume: (id) => measure(volumePlace(home, id)),
    ensureSnapshot: (volumeId, snapshotId) =>
      copy(opened, volumePlace(home, volumeId), snapshotPlace(home, snapshotId), snapshotId),
    measureSnapshot: (id) => allocated(contentOf(snapshotPlace(home, id))?.path),
    removeSnapshot: (id) => remove(opened, snapshotPlace(home, id), id),
    removeVolume: (id) => remove(opened, volumePlace(home, id), id),
    mountOf(id) {
      const found = contentOf(volumePlace(home, id))
      if (!found) throw new Error(`there is no volume ${id}`)
      return { source: found.path, kind: found.name === disk ? 'image' : 'directory' }
    },
  }
}

const disk = 'disk'
const files = 'files'
const gigabyte = 1024 ** 3

function volumePlace(home: Home, id: string): string {
  return placeOf(home, 'volume', id)
}

function snapshotPlace(home: Home, id: string): string {
  return placeOf(home, 'snapshot', id)
}

function placeOf(home: Home, kind: string, id: string): string {
  if (!/^[a-z0-9_]+$/.test(id)) throw new Error(`not the id of a ${kind}: ${JSON.stringify(id)}`)
  return `${home.path}/${kind}/${id}`
}

function contentOf(place: string): { name: string; path: string } | undefined {
  const name = [disk, files].find((one) => existsSync(`${place}/${one}`))
  return name === undefined ? undefined : { name, path: `${place}/${name}` }
}

async function ensureVolume(parts: Opened, volume: Parameters<VolumeDriver['ensureVolume']>[0]): Promise<VolumeWork> {
  const { home } = parts
  const { id, sizeGb, from } = volume
  const place = volumePlace(home, id)
  if (!contentOf(place)) {
    if (from) {
      const source = 'volumeId' in from ? volumePlace(home, from.volumeId) : snapshotPlace(home, from.snapshotId)
      const work = await copy(parts, source, place, id)
      if (work.is !== 'done') return work
    } else await makeEmpty(place, sizeGb, await parts.mounts())
  }
  await extend(place, sizeGb)
  return { is: 'done' }
}

/** What it is called when it is whole appears by a rename. */
async function makeEmpty(place: string, sizeGb: number, mounts: boolean): Promise<void> {
  ensureDirectory(place, { mode: 0o700 })
  const fresh = freshName(place)
  try {
    if (mounts) await makeDisk(fresh, sizeGb)
    else mkdirSync(fresh, { mode: 0o755 })
    renameSync(fresh, `${place}/${mounts ? disk : files}`)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    throw new Error('make an empty volume', { cause: error })
  }
  syncDirectory(place)
}

/** No block is kept for root, which is nobody's in particular here; tables are written when they are first used. */
async function makeDisk(file: string, sizeGb: number): Promise<void> {
  await run('truncate', ['-s', `${sizeGb}G`, file])
  const later = 'lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0'
  await run('mkfs.ext4', ['-q', '-F', '-m', '0', '-E', later, file])
}

/** A machine that stops lets go of the disk a moment later. */
const letGoSeconds = 3

async function extend(place: string, sizeGb: number): Promise<{ needsRestart: boolean }> {
  const content = contentOf(place)
  if (!content) throw new Error(`there is no volume at ${place}`)
  if (content.name === files || !isSmaller(content.path, sizeGb)) return { needsRestart: false }
  const isFree = () => findLoop(content.path) === undefined
  if (!growsMounted() && !(await waitUntil(isFree, letGoSeconds))) return { needsRestart: true }
  const command = [driverProgram('volume/grow.pl'), content.path, String(sizeGb * gigabyte)]
  await run('perl', command, { timeoutSeconds: 600 })
  return { needsRestart: false }
}

const sysResource = 1n << 24n

/** The kernel lets nobody change the size of a mounted filesystem without this right, which containers often lack. */
export function growsMounted(): boolean {
  const held = /^CapEff:\t([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]
  return held !== undefined && (BigInt(`0x${held}`) & sysResource) !== 0n
}

/** The filesystem, not the file: that is grown first. One that is mounted may say so for a while after it has grown. */
function isSmaller(image: string, sizeGb: number): boolean {
  const { blocks, blockSize } = readSuperblock(image)
  return blocks * blockSize < sizeGb * gigabyte
}

function measure(place: string): VolumeMeasure | undefined {
  const content = contentOf(place)
  // A directory lies on the disk that all share.
  if (!content || content.name === files) return undefined
  const mounted = statMounted(content.path)
  const { blockSize, blocks, blocksFree } = mounted
    ? { blockSize: mounted.bsize, blocks: mounted.blocks, blocksFree: mounted.bfree }
    : readSuperblock(content.path)
  return { blockSize, blocks, blocksFree, bytesUsed: (blocks - blocksFree) * blockSize }
}

function allocated(path: string | undefined): number {
  return path === undefined ? 0 : statSync(path).blocks * 512
}

/** As long as a step may take without the loop noticing. */
const patienceSeconds = 1

/** Long copies outlive the control plane. */
async function copy(parts: Opened, from: string, to: string, id: string): Promise<VolumeWork> {
  if (contentOf(to)) return { is: 'done' }
  const source = contentOf(from)
  if (!source) return { is: 'failed', reason: 'what is to be copied is gone' }
  ensureDirectory(to, { mode: 0o700 })
  const job = jobOf(id)
  const command = [findCommand('perl') ?? 'perl', driverProgram('volume/copy.pl'), source.path, to, source.name]
  await parts.jobs.ensureJob(job, { command })
  await waitUntil(() => contentOf(to) !== undefined, patienceSeconds)
  const state = await parts.jobs.inspectJob(job)
  if (!contentOf(to) && state.is !== 'ended') return { is: 'running' }
  // The rename is the last thing it does; after a failure the next try starts over.
  await parts.jobs.removeJob(job)
  return contentOf(to) ? { is: 'done' } : { is: 'failed', reason: reasonOf(state as JobState & { is: 'ended' }) }
}

function reasonOf(state: JobState & { is: 'ended' }): string {
  return ['the copy failed', ...state.log.slice(-3).map((line) => withoutTime(line).trim())].join(': ')
}

function jobOf(id: string): string {
  return `volume-copy-${id.replaceAll('_', '-')}`
}

async function remove({ home, jobs }: Opened, place: string, id: string): Promise<void> {
  await jobs.removeJob(jobOf(id))
  if (!existsSync(place)) return
  discard(home, place)
  sweepTrash(home)
}

function syncDirectory(path: string): void {
  const descriptor = openSync(path, 'r')
  fsyncSync(descriptor)
  closeSync(descriptor)
}

async function probe(home: Home): Promise<boolean> {
  ensureDirectory(`${home.path}/volume`, { mode: 0o700 })
  return (await findDiskGap(`${home.path}/volume`)) === undefined
}

/** Why a file cannot be mounted as a disk, by doing it in a directory where nobody else sees it. */
export async function findDiskGap(directory: string): Promise<string | undefined> {
  if (!isRoot()) return 'ordinary users may not mount'
  const missing = ['mkfs.ext4', 'e2fsck', 'resize2fs', 'losetup', 'unshare'].filter((name) => !commandExists(name))
  if (missing.length > 0) return `${missing.join(', ')} not found`
  const place = freshName(directory)
  mkdirSync(`${place}/at`, { recursive: true })
  try {
    await run('truncate', ['-s', '8M', `${place}/disk`])
    await run('mkfs.ext4', ['-q', '-F', `${place}/disk`])
    await run('unshare', ['-m', 'mount', '-t', 'ext4', '-o', 'loop,ro', `${place}/disk`, `${place}/at`])
    return undefined
  } catch (error) {
    return (error as Error).message
  } finally {
    rmSync(place, { recursive: true, force: true })
  }
}
