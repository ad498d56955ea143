// A checkpoint is a copy of the layers that a box writes, in `checkpoint/<id>` beside them. It appears there by a rename,
// whole. On btrfs the layers lie in a subvolume and the copy is a snapshot, which takes no time and needs no standing
// still; elsewhere a job copies them while the processes of the box are held still, so that it has the files of one
// moment. Where there are no control groups they go on, and a checkpoint may have half of what was being written.
import { spawn } from 'node:child_process'
import { existsSync, globSync, mkdirSync, readdirSync, renameSync, rmdirSync, symlinkSync } from 'node:fs'
import { basename } from 'node:path'
import { type CgroupDriver, cgroupName } from '../../host/cgroup.ts'
import { findFreezer } from '../../host/cgroup-freezer.ts'
import { ensureDirectory } from '../../host/fresh.ts'
import type { Home } from '../../host/home.ts'
import { baseEnvironment, commandExists, findCommand, isRoot, run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import { discard, sweepTrash } from '../../host/trash.ts'
import { type JobDriver, type JobState, withoutTime } from '../../s6/job.ts'
import { readWay } from '../disk.ts'
import type { BoxDriver, BoxSpec } from '../driver.ts'
import { type BoxPaths, boxPaths } from '../paths.ts'
import { boxQuota, hasSubvolumes } from '../quota.ts'
import { arrangeViews, hideCheckpoint, showCheckpoints } from './view.ts'

export type CopyState = { is: 'running' } | { is: 'done' } | { is: 'failed'; reason: string }

export interface CheckpointDriver {
  /** Starts the copy of what the box has written, or looks how far it is. Waits for its end for a moment. */
  makeCheckpoint(spec: BoxSpec, checkpoint: string): Promise<CopyState>
  /** The same with a copy of a checkpoint, to be swapped in; what the box has is to be kept under the second name. */
  prepareRestore(spec: BoxSpec, from: string, kept: string): Promise<CopyState>
  /** Only while the box is down. It has what was prepared, and what it had is a checkpoint. Repeating is harmless. */
  swapLayers(spec: BoxSpec, kept: string): Promise<void>
  /** Nothing is left of a copy that was begun under this name, and no process stands still for it. */
  abandonCopy(spec: BoxSpec, checkpoint: string): Promise<void>
  removeCheckpoint(id: string, checkpoint: string): Promise<void>
  /** What was written in the box takes this much of the disk. */
  measureLayers(id: string): Promise<number>
  /** The records of copies that came to their end are gone. Only while none is being made. */
  tidy(spec: BoxSpec): Promise<void>
}

export interface CheckpointParts {
  home: Home
  jobs: JobDriver
  cgroups: CgroupDriver
}

export function checkpointDriver(parts: CheckpointParts): CheckpointDriver {
  const { home } = parts
  return {
    makeCheckpoint: async (spec, checkpoint) => {
      const paths = boxPaths(home, spec.id)
      const copy = { from: paths.directory, place: paths.checkpoints, name: checkName(checkpoint) }
      const state = await copyLayers(parts, spec, copy)
      if (state.is === 'done') await showCheckpoints(home, paths)
      return state
    },
    prepareRestore: async (spec, from, kept) => {
      const place = boxPaths(home, spec.id).checkpoints
      if (existsSync(`${place}/${checkName(kept)}`)) return { is: 'done' }
      const copy = { from: `${place}/${checkName(from)}`, place, name: preparedName(kept), isStill: true }
      return copyLayers(parts, spec, copy)
    },
    swapLayers: async (spec, kept) => swapLayers(home, boxPaths(home, spec.id), checkName(kept)),
    abandonCopy: (spec, checkpoint) => abandonCopy(parts, spec, checkName(checkpoint)),
    measureLayers: (id) => measureLayers(boxPaths(home, id)),
    tidy: (spec) => removeJobs(parts, spec),
    removeCheckpoint: (id, checkpoint) => removeCheckpoint(home, boxPaths(home, id), checkName(checkpoint)),
  }
}

const script = driverProgram('box/checkpoint/checkpoint.pl')

function checkName(checkpoint: string): string {
  if (!/^[a-z0-9][a-z0-9-]*$/.test(checkpoint)) throw new Error(`not a checkpoint: ${JSON.stringify(checkpoint)}`)
  return checkpoint
}

/** A name that no checkpoint can have. */
function preparedName(kept: string): string {
  return `restore~${kept}`
}

const subvolume = 'layer'

/** What is copied: the subvolume that holds the layers, or the layers, or without isolation the only directory there is. */
function layersOf(paths: BoxPaths): string[] {
  if (existsSync(`${paths.directory}/${subvolume}`)) return [subvolume]
  if (readWay(paths) === 'none') return [basename(paths.root)]
  return [basename(paths.upper), basename(paths.upperUsr)]
}

interface Copy {
  from: string
  place: string
  name: string
  /** Nobody writes to what is copied. */
  isStill?: boolean
}

async function copyLayers(parts: CheckpointParts, spec: BoxSpec, copy: Copy): Promise<CopyState> {
  ensureDirectory(copy.place, { mode: 0o700 })
  if (existsSync(`${copy.place}/${copy.name}`)) return { is: 'done' }
  const paths = boxPaths(parts.home, spec.id)
  const layers = layersOf(paths)
  if (layers[0] === subvolume) return takeSnapshot(copy)
  const freezer = copy.isStill ? undefined : freezerOf(parts, spec)
  const job = jobOf(paths, copy.name)
  await parts.jobs.ensureJob(job, {
    command: [
      ...[findCommand('perl') ?? 'perl', script, 'copy', freezer?.group ?? '', freezer?.members ?? ''],
      ...[copy.from, copy.place, copy.name, ...copier(paths), '--', ...layers],
    ],
  })
  return waitForCopy(parts.jobs, job, copy)
}

/**
 * Root sees nothing but what is copied and the programs to do it with, so that no link that a box puts in the way leads
 * anywhere. An ordinary user is root over files of his own in a user namespace, whatever mode they have.
 */
function copier(paths: BoxPaths): string[] {
  const cp = ['cp', '-a', '--reflink=auto']
  if (readWay(paths) === 'none' || !commandExists('bwrap')) return cp
  const programs = ['/usr', '/bin', '/lib', '/lib64'].flatMap((path) => ['--ro-bind-try', path, path])
  // The C library sets the mode of what it may not open by way of /proc.
  const shown = ['--ro-bind', 'FROM', '/from', '--bind', 'TO', '/to', '--proc', '/proc']
  const user = isRoot() ? [] : ['--unshare-user', '--uid', '0', '--gid', '0']
  const apart = ['--unshare-pid', '--unshare-ipc', '--cap-add', 'ALL', '--die-with-parent']
  return ['bwrap', ...programs, ...shown, ...user, ...apart, ...cp]
}

function freezerOf({ home, cgroups }: CheckpointParts, spec: BoxSpec): { group: string; members: string } | undefined {
  const name = cgroupName(home, `sandbox-${spec.id}`)
  const members = cgroups.ensureCgroup(name, spec.limits)[0]
  const group = members && findFreezer(members)
  return group === undefined ? undefined : { group, members: members! }
}

function jobOf(paths: BoxPaths, name: string): string {
  return `${jobPrefix(paths)}${name.replace('~', '.')}`
}

function jobPrefix(paths: BoxPaths): string {
  return `checkpoint-${basename(paths.directory)}-`
}

/** Removing one takes as long as a small copy, so it is done when nobody waits. */
async function removeJobs(parts: CheckpointParts, spec: BoxSpec): Promise<void> {
  const { home, jobs } = parts
  const paths = boxPaths(home, spec.id)
  const found = readdirSync(home.tree).filter((name) => name.startsWith(jobPrefix(paths)))
  if (found.length === 0) return
  for (const job of found) await jobs.removeJob(job)
  // A job that was killed could not do this itself.
  const freezer = freezerOf(parts, spec)
  if (freezer && existsSync(freezer.group)) await run('perl', [script, 'thaw', freezer.group])
}

/** As long as a step may take without the loop noticing. */
const patienceMillis = 1000
const lookMillis = 5

async function waitForCopy(jobs: JobDriver, job: string, { place, name }: Copy): Promise<CopyState> {
  for (const deadline = performance.now() + patienceMillis; performance.now() < deadline; ) {
    if (existsSync(`${place}/${name}`)) {
      writeThrough(place)
      return { is: 'done' }
    }
    await new Promise((resolve) => setTimeout(resolve, lookMillis))
  }
  const state = await jobs.inspectJob(job)
  if (existsSync(`${place}/${name}`)) return { is: 'done' }
  if (state.is === 'ended') return { is: 'failed', reason: reasonOf(state) }
  return { is: 'running' }
}

/** Nobody waits for the disk: a checkpoint is as safe as what was just written in the box. */
function writeThrough(place: string): void {
  const child = spawn('sync', ['-f', place], { detached: true, stdio: 'ignore', env: baseEnvironment, cwd: '/' })
  child.on('error', () => undefined)
  child.unref()
}

function reasonOf(state: JobState & { is: 'ended' }): string {
  const words = state.log.slice(-3).map((line) => withoutTime(line).trim())
  return ['the checkpoint could not be copied', ...words].join(': ')
}

async function takeSnapshot({ from, place, name }: Copy): Promise<CopyState> {
  const fresh = `${place}/.new~${name}`
  await removeSnapshot(fresh)
  mkdirSync(fresh, { mode: 0o700 })
  await run('btrfs', ['subvolume', 'snapshot', `${from}/${subvolume}`, `${fresh}/${subvolume}`])
  renameSync(fresh, `${place}/${name}`)
  return { is: 'done' }
}

async function removeSnapshot(directory: string): Promise<void> {
  if (!existsSync(directory)) return
  if (existsSync(`${directory}/${subvolume}`)) {
    await run('btrfs', ['subvolume', 'delete', `${directory}/${subvolume}`])
  }
  rmdirSync(directory)
}

/** Each layer by two renames; whichever of them was the last before a crash, the next turn goes on from there. */
function swapLayers(home: Home, paths: BoxPaths, kept: string): void {
  const place = paths.checkpoints
  const prepared = `${place}/${preparedName(kept)}`
  const keeping = `${place}/.kept~${kept}`
  if (!existsSync(`${place}/${kept}`)) {
    keepAndReplace(home, paths, prepared, keeping)
    renameSync(keeping, `${place}/${kept}`)
  }
  arrangeViews(paths)
  discard(home, prepared)
}

function keepAndReplace(home: Home, paths: BoxPaths, prepared: string, keeping: string): void {
  mkdirSync(keeping, { recursive: true, mode: 0o700 })
  for (const layer of readdirSync(prepared)) {
    const own = `${paths.directory}/${layer}`
    // Somebody started the box between the two renames of a turn that was cut off, and it made an empty one.
    if (existsSync(own) && existsSync(`${keeping}/${layer}`)) discard(home, own)
    if (existsSync(own)) renameSync(own, `${keeping}/${layer}`)
    renameSync(`${prepared}/${layer}`, own)
  }
}

async function abandonCopy(parts: CheckpointParts, spec: BoxSpec, checkpoint: string): Promise<void> {
  const { home } = parts
  const paths = boxPaths(home, spec.id)
  await removeJobs(parts, spec)
  for (const name of [checkpoint, preparedName(checkpoint)]) discard(home, `${paths.checkpoints}/.new~${name}`)
  sweepTrash(home)
}

async function removeCheckpoint(home: Home, paths: BoxPaths, checkpoint: string): Promise<void> {
  const directory = `${paths.checkpoints}/${checkpoint}`
  hideCheckpoint(paths, checkpoint)
  if (existsSync(`${directory}/${subvolume}`)) await removeSnapshot(directory)
  else discard(home, directory)
  await showCheckpoints(home, paths)
  sweepTrash(home)
}

/**
 * For the end of everything that runs in a home. In the first version of control groups a process that is held still
 * does not even end when it is killed. A copy that was being made begins anew when the platform is back.
 */
export async function stopCopies(home: Home, jobs: JobDriver): Promise<void> {
  const copies = readdirSync(home.tree).filter((name) => name.startsWith('checkpoint-'))
  for (const job of copies) await jobs.removeJob(job)
  const groups = globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, 'sandbox-')}*`)
  for (const group of groups) await run('perl', [script, 'thaw', group])
}

/** It follows no links and reads no file, so that a box cannot lead it astray. */
async function measureLayers(paths: BoxPaths): Promise<number> {
  const layers = layersOf(paths).map((layer) => `${paths.directory}/${layer}`)
  const { stdout } = await run('nice', ['du', '--summarize', '--block-size=1', '--', ...layers])
  return stdout.split('\n').reduce((sum, line) => sum + Number.parseInt(line || '0', 10), 0)
}

/**
 * Boxes whose layers lie in a subvolume of their own, where the home is on btrfs, and that can write as much as they may.
 * The layers keep their usual names by links, which the box cannot see.
 */
export function withSubvolumes(boxes: BoxDriver, home: Home): BoxDriver {
  const quota = boxQuota(home.path)
  return {
    ...boxes,
    isolation: async () => ({ ...(await boxes.isolation()), limitsStorage: await quota.isPossible() }),
    async ensureBox(spec) {
      const paths = boxPaths(home, spec.id)
      await ensureSubvolume(home, paths)
      const layer = `${paths.directory}/${subvolume}`
      if (existsSync(layer)) await quota.ensureLimit(layer, spec.storageGb)
      return boxes.ensureBox(spec)
    },
  }
}

async function ensureSubvolume(home: Home, paths: BoxPaths): Promise<void> {
  if (existsSync(paths.workUsr) || !hasSubvolumes(home.path)) return
  ensureDirectory(paths.directory, { mode: 0o711 })
  const layer = `${paths.directory}/${subvolume}`
  if (!existsSync(layer)) {
    const fresh = `${paths.directory}/.new~${subvolume}`
    if (!existsSync(fresh)) await run('btrfs', ['subvolume', 'create', fresh])
    renameSync(fresh, layer)
  }
  for (const path of [paths.upper, paths.work, paths.upperUsr, paths.workUsr]) {
    ensureDirectory(`${layer}/${basename(path)}`, { mode: 0o711 })
    if (!existsSync(path)) symlinkSync(`${subvolume}/${basename(path)}`, path)
  }
}
