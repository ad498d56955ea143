// Copies the layers of a box. On btrfs they are a subvolume, and the copy is a snapshot, which is instant and consistent.
// Elsewhere a job copies them while the processes of the box are frozen, so that all files are of one moment. Without
// control groups the processes keep running, and a checkpoint may contain half-written files.
import { spawn } from 'node:child_process'
import { existsSync, globSync, readdirSync } from 'node:fs'
import { basename } from 'node:path'
import type { BoxSpec } from '../../../model/sandbox/box.ts'
import { ensureDirectory } from '../../host/atomic-file.ts'
import { cgroupName } from '../../host/cgroup.ts'
import { findFreezer } from '../../host/cgroup-freezer.ts'
import type { CgroupDriver } from '../../host/driver.ts'
import type { Home } from '../../host/home.ts'
import { baseEnvironment, commandExists, findCommand, isRoot, run } from '../../host/process.ts'
import { driverProgram } from '../../host/program.ts'
import type { JobDriver, JobState } from '../../s6/driver.ts'
import { stripLogTime } from '../../s6/job.ts'
import { readIsolationMode } from '../disk.ts'
import { type BoxPaths, boxPaths } from '../paths.ts'
import type { CopyState } from './driver.ts'
import { subvolume, takeSnapshot } from './subvolume.ts'

export interface CopyHost {
  home: Home
  jobs: JobDriver
  cgroups: CgroupDriver
}

export interface LayerCopy {
  from: string
  parent: string
  name: string
  /** True when the source cannot change during the copy, so that nothing has to be frozen. */
  isReadOnly?: boolean
}

const script = driverProgram('box/checkpoint/checkpoint.pl')

/** The directories to copy: the subvolume with the layers, the layers, or without isolation the only directory. */
export function layersOf(paths: BoxPaths): string[] {
  if (existsSync(`${paths.directory}/${subvolume}`)) return [subvolume]
  if (readIsolationMode(paths) === 'none') return [basename(paths.root)]
  return [basename(paths.upper), basename(paths.upperUsr)]
}

export async function copyLayers(host: CopyHost, spec: BoxSpec, copy: LayerCopy): Promise<CopyState> {
  ensureDirectory(copy.parent, { mode: 0o700 })
  if (existsSync(`${copy.parent}/${copy.name}`)) return { is: 'done' }
  const paths = boxPaths(host.home, spec.id)
  const layers = layersOf(paths)
  if (layers[0] === subvolume) {
    await takeSnapshot(copy)
    return { is: 'done' }
  }
  const freezer = copy.isReadOnly ? undefined : freezerOf(host, spec)
  const job = jobName(paths, copy.name)
  await host.jobs.ensureJob(job, {
    command: [
      ...[findCommand('perl') ?? 'perl', script, 'copy', freezer?.group ?? '', freezer?.members ?? ''],
      ...[copy.from, copy.parent, copy.name, ...copyCommand(paths), '--', ...layers],
    ],
  })
  return waitForCopy(host.jobs, job, copy)
}

/**
 * cp runs in a mount namespace with nothing but the source, the target and its own programs, so that links made by the
 * box cannot lead it elsewhere. Without root it gets a user namespace, to read its own files whatever their mode is.
 */
function copyCommand(paths: BoxPaths): string[] {
  const cp = ['cp', '-a', '--reflink=auto']
  if (readIsolationMode(paths) === 'none' || !commandExists('bwrap')) return cp
  const programs = ['/usr', '/bin', '/lib', '/lib64'].flatMap((path) => ['--ro-bind-try', path, path])
  // The C library needs /proc to change the mode of files that it cannot open.
  const mounts = ['--ro-bind', 'FROM', '/from', '--bind', 'TO', '/to', '--proc', '/proc']
  const user = isRoot() ? [] : ['--unshare-user', '--uid', '0', '--gid', '0']
  const isolation = ['--unshare-pid', '--unshare-ipc', '--cap-add', 'ALL', '--die-with-parent']
  return ['bwrap', ...programs, ...mounts, ...user, ...isolation, ...cp]
}

function freezerOf({ home, cgroups }: CopyHost, spec: BoxSpec): { group: string; members: string } | undefined {
  const name = cgroupName(home, `sandbox-${spec.id}`)
  const members = cgroups.ensureCgroup(name, spec.limits)[0]
  const group = members && findFreezer(members)
  return group === undefined ? undefined : { group, members: members! }
}

function jobName(paths: BoxPaths, name: string): string {
  return `${jobPrefix(paths)}${name.replace('~', '.')}`
}

function jobPrefix(paths: BoxPaths): string {
  return `checkpoint-${basename(paths.directory)}-`
}

/** Removing a job takes as long as a small copy, so it is done when no caller waits. */
export async function removeCopyJobs(host: CopyHost, spec: BoxSpec): Promise<void> {
  const { home, jobs } = host
  const paths = boxPaths(home, spec.id)
  const found = readdirSync(home.tree).filter((name) => name.startsWith(jobPrefix(paths)))
  if (found.length === 0) return
  for (const job of found) await jobs.removeJob(job)
  // A job that was killed could not thaw the processes itself.
  const freezer = freezerOf(host, spec)
  if (freezer && existsSync(freezer.group)) await run('perl', [script, 'thaw', freezer.group])
}

/** Small copies end within this time and need no further turn of the background loop. */
const maxWaitMs = 1000
const pollMs = 5

async function waitForCopy(jobs: JobDriver, job: string, { parent, name }: LayerCopy): Promise<CopyState> {
  for (const deadline = performance.now() + maxWaitMs; performance.now() < deadline; ) {
    if (existsSync(`${parent}/${name}`)) {
      syncInBackground(parent)
      return { is: 'done' }
    }
    await new Promise((resolve) => setTimeout(resolve, pollMs))
  }
  const state = await jobs.inspectJob(job)
  if (existsSync(`${parent}/${name}`)) return { is: 'done' }
  if (state.is === 'ended') return { is: 'failed', reason: failureOf(state) }
  return { is: 'running' }
}

/** The caller does not wait for the disk: a checkpoint is as durable as the files that were just written in the box. */
function syncInBackground(directory: string): void {
  const child = spawn('sync', ['-f', directory], { detached: true, stdio: 'ignore', env: baseEnvironment, cwd: '/' })
  child.on('error', () => undefined)
  child.unref()
}

function failureOf(state: JobState & { is: 'ended' }): string {
  const words = state.log.slice(-3).map((line) => stripLogTime(line).trim())
  return ['the checkpoint could not be copied', ...words].join(': ')
}

/**
 * Stops all copies of a home before its processes are ended: with cgroup v1, frozen processes do not even end when they
 * are killed. An interrupted copy starts again with the platform.
 */
export async function stopCopies(home: Home, jobs: JobDriver): Promise<void> {
  const copies = readdirSync(home.tree).filter((name) => name.startsWith('checkpoint-'))
  for (const job of copies) await jobs.removeJob(job)
  await thawCopies(home, '*')
}

/** Thaws the processes of the box with this id, or of all boxes for `*`, after their copies have ended. */
export async function thawCopies(home: Home, id: string): Promise<void> {
  const groups = globSync(`/sys/fs/cgroup/freezer/${cgroupName(home, `sandbox-${id}`)}`)
  for (const group of groups) await run('perl', [script, 'thaw', group])
}
