// A volume is an ext4 filesystem in a sparse file in `volume/<id>`; the filesystem enforces the size. On hosts that cannot
// mount files it is a directory, and its size is not enforced. Snapshots are copies in `snapshot/<id>`.
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
import { waitUntil } from '../../model/poll.ts'
import { ensureDirectory, temporaryPath } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { commandExists, findCommand, isRoot, run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import type { JobDriver, JobState } from '../s6/driver.ts'
import { stripLogTime } from '../s6/job.ts'
import type { VolumeDriver, VolumeMeasure, VolumeWork } from './driver.ts'
import { findLoop, statMounted } from './mounted.ts'
import { readSuperblock } from './superblock.ts'

export interface VolumeOptions {
  home: Home
  jobs: JobDriver
  /** Replaces the probe whether this host can mount files. */
  canMount?: boolean
}

interface VolumeHost extends VolumeOptions {
  canMountFiles(): Promise<boolean>
}

export function volumeDriver(options: VolumeOptions): VolumeDriver {
  let probed: Promise<boolean> | undefined
  const host: VolumeHost = {
    ...options,
    canMountFiles() {
      probed ??= options.canMount === undefined ? probe(options.home) : Promise.resolve(options.canMount)
      return probed
    },
  }
  const { home } = options
  return {
    enforcesSize: () => host.canMountFiles(),
    growsAtStart: async () => !canGrowMounted() && (await host.canMountFiles()),
    ensureVolume: (volume) => ensureVolume(host, volume),
    extendVolume: (id, sizeGb) => extend(volumeDirectory(home, id), sizeGb),
    measureVolume: (id) => measure(volumeDirectory(home, id)),
    ensureSnapshot: (volumeId, snapshotId) =>
      copy(host, volumeDirectory(home, volumeId), snapshotDirectory(home, snapshotId), snapshotId),
    measureSnapshot: (id) => allocatedBytes(contentOf(snapshotDirectory(home, id))?.path),
    removeSnapshot: (id) => remove(host, snapshotDirectory(home, id), id),
    removeVolume: (id) => remove(host, volumeDirectory(home, id), id),
    mountOf(id) {
      const found = contentOf(volumeDirectory(home, id))
      if (!found) throw new Error(`there is no volume ${id}`)
      return { source: found.path, kind: found.name === disk ? 'image' : 'directory' }
    },
  }
}

const disk = 'disk'
const files = 'files'
const gigabyte = 1024 ** 3

function volumeDirectory(home: Home, id: string): string {
  return directoryOf(home, 'volume', id)
}

function snapshotDirectory(home: Home, id: string): string {
  return directoryOf(home, 'snapshot', id)
}

function directoryOf(home: Home, kind: string, id: string): string {
  if (!/^[a-z0-9_]+$/.test(id)) throw new Error(`not the id of a ${kind}: ${JSON.stringify(id)}`)
  return `${home.path}/${kind}/${id}`
}

function contentOf(directory: string): { name: string; path: string } | undefined {
  const name = [disk, files].find((one) => existsSync(`${directory}/${one}`))
  return name === undefined ? undefined : { name, path: `${directory}/${name}` }
}

async function ensureVolume(
  host: VolumeHost,
  volume: Parameters<VolumeDriver['ensureVolume']>[0],
): Promise<VolumeWork> {
  const { home } = host
  const { id, sizeGb, from } = volume
  const directory = volumeDirectory(home, id)
  if (!contentOf(directory)) {
    if (from) {
      const source =
        'volumeId' in from ? volumeDirectory(home, from.volumeId) : snapshotDirectory(home, from.snapshotId)
      const work = await copy(host, source, directory, id)
      if (work.is !== 'done') return work
    } else await makeEmpty(directory, sizeGb, await host.canMountFiles())
  }
  await extend(directory, sizeGb)
  return { is: 'done' }
}

/** Renames the volume to its final name when it is complete. */
async function makeEmpty(directory: string, sizeGb: number, canMount: boolean): Promise<void> {
  ensureDirectory(directory, { mode: 0o700 })
  const fresh = temporaryPath(directory)
  try {
    if (canMount) await makeDisk(fresh, sizeGb)
    else mkdirSync(fresh, { mode: 0o755 })
    renameSync(fresh, `${directory}/${canMount ? disk : files}`)
  } catch (error) {
    rmSync(fresh, { recursive: true, force: true })
    throw new Error('make an empty volume', { cause: error })
  }
  syncDirectory(directory)
}

/** Reserves no blocks for root, and initializes inode tables and journal lazily, which makes creation fast. */
async function makeDisk(file: string, sizeGb: number): Promise<void> {
  await run('truncate', ['-s', `${sizeGb}G`, file])
  const extended = 'lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0'
  await run('mkfs.ext4', ['-q', '-F', '-m', '0', '-E', extended, file])
}

/** The kernel releases the loop device a moment after a machine has stopped. */
const releaseTimeoutSeconds = 3

async function extend(directory: string, sizeGb: number): Promise<{ needsRestart: boolean }> {
  const content = contentOf(directory)
  if (!content) throw new Error(`there is no volume at ${directory}`)
  if (content.name === files || !isSmaller(content.path, sizeGb)) return { needsRestart: false }
  const isFree = () => findLoop(content.path) === undefined
  if (!canGrowMounted() && !(await waitUntil(isFree, releaseTimeoutSeconds))) return { needsRestart: true }
  const command = [driverProgram('volume/grow.pl'), content.path, String(sizeGb * gigabyte)]
  await run('perl', command, { timeoutSeconds: 600 })
  return { needsRestart: false }
}

const capSysResource = 1n << 24n

/** Resizing a mounted filesystem needs CAP_SYS_RESOURCE, which containers often lack. */
export function canGrowMounted(): boolean {
  const held = /^CapEff:\t([0-9a-f]+)$/m.exec(readFileSync('/proc/self/status', 'utf8'))?.[1]
  return held !== undefined && (BigInt(`0x${held}`) & capSysResource) !== 0n
}

/** Compares the filesystem, because the file grows first. A mounted one may report its old size for a while. */
function isSmaller(image: string, sizeGb: number): boolean {
  const { blocks, blockSize } = readSuperblock(image)
  return blocks * blockSize < sizeGb * gigabyte
}

function measure(directory: string): VolumeMeasure | undefined {
  const content = contentOf(directory)
  // A directory has no filesystem of its own to measure.
  if (!content || content.name === files) return undefined
  const mounted = statMounted(content.path)
  const { blockSize, blocks, blocksFree } = mounted
    ? { blockSize: mounted.bsize, blocks: mounted.blocks, blocksFree: mounted.bfree }
    : readSuperblock(content.path)
  return { blockSize, blocks, blocksFree, bytesUsed: (blocks - blocksFree) * blockSize }
}

function allocatedBytes(path: string | undefined): number {
  return path === undefined ? 0 : statSync(path).blocks * 512
}

/** Short enough for a step of the loop to wait. */
const patienceSeconds = 1

/** Copies in a job, which survives a restart of the control plane. */
async function copy(host: VolumeHost, from: string, to: string, id: string): Promise<VolumeWork> {
  if (contentOf(to)) return { is: 'done' }
  const source = contentOf(from)
  if (!source) return { is: 'failed', reason: 'the source of the copy does not exist' }
  ensureDirectory(to, { mode: 0o700 })
  const job = jobOf(id)
  const command = [findCommand('perl') ?? 'perl', driverProgram('volume/copy.pl'), source.path, to, source.name]
  await host.jobs.ensureJob(job, { command })
  await waitUntil(() => contentOf(to) !== undefined, patienceSeconds)
  const state = await host.jobs.inspectJob(job)
  if (!contentOf(to) && state.is !== 'ended') return { is: 'running' }
  // The job renames the copy at its end. After a failure the next call starts over.
  await host.jobs.removeJob(job)
  return contentOf(to) ? { is: 'done' } : { is: 'failed', reason: reasonOf(state as JobState & { is: 'ended' }) }
}

function reasonOf(state: JobState & { is: 'ended' }): string {
  return ['the copy failed', ...state.log.slice(-3).map((line) => stripLogTime(line).trim())].join(': ')
}

function jobOf(id: string): string {
  return `volume-copy-${id.replaceAll('_', '-')}`
}

async function remove({ home, jobs }: VolumeHost, directory: string, id: string): Promise<void> {
  await jobs.removeJob(jobOf(id))
  if (!existsSync(directory)) return
  moveToTrash(home, directory)
  emptyTrash(home)
}

function syncDirectory(path: string): void {
  const descriptor = openSync(path, 'r')
  fsyncSync(descriptor)
  closeSync(descriptor)
}

async function probe(home: Home): Promise<boolean> {
  ensureDirectory(`${home.path}/volume`, { mode: 0o700 })
  return (await findMountProblem(`${home.path}/volume`)) === undefined
}

/** Tries to mount a file in a temporary mount namespace. Returns why it failed, or undefined. */
export async function findMountProblem(directory: string): Promise<string | undefined> {
  if (!isRoot()) return 'ordinary users may not mount'
  const missing = ['mkfs.ext4', 'e2fsck', 'resize2fs', 'losetup', 'unshare'].filter((name) => !commandExists(name))
  if (missing.length > 0) return `${missing.join(', ')} not found`
  const scratch = temporaryPath(directory)
  mkdirSync(`${scratch}/at`, { recursive: true })
  try {
    await run('truncate', ['-s', '8M', `${scratch}/disk`])
    await run('mkfs.ext4', ['-q', '-F', `${scratch}/disk`])
    await run('unshare', ['-m', 'mount', '-t', 'ext4', '-o', 'loop,ro', `${scratch}/disk`, `${scratch}/at`])
    return undefined
  } catch (error) {
    return (error as Error).message
  } finally {
    rmSync(scratch, { recursive: true, force: true })
  }
}
