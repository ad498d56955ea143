import { existsSync, renameSync, rmSync } from 'node:fs'
import type { DataSpec } from '../../model/postgres/spec.ts'
import { ensureDirectory, removeAbandonedFiles, temporaryPath } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { reidentify } from './identity.ts'
import { type ClusterPaths, clusterPaths } from './paths.ts'
import { ensureTemplate } from './template.ts'

// The copy and the flush wait for the disk, which other processes may keep busy.
const timeoutSeconds = 300

/** Creates a durable data directory with a system identifier of its own, unless there is one. */
export async function ensureData(home: Home, id: string, spec: DataSpec): Promise<void> {
  const paths = clusterPaths(home, id)
  if (existsSync(paths.data)) return
  const template = await ensureTemplate(spec.toolchain, home)
  await ensureClusterDirectory(home, paths)
  await removeAbandonedFiles(paths.directory)
  const fresh = temporaryPath(paths.directory)
  try {
    await copyTemplate(template, fresh, spec.uid)
    reidentify(fresh)
    await run('sync', ['-f', fresh], { timeoutSeconds })
    renameSync(fresh, paths.data)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process may have created it first, which is just as good.
    if (!existsSync(paths.data)) throw new Error(`create the data directory of cluster ${id}`, { cause })
  }
}

// The copy is made by the user of the cluster, so that this user owns all of it and no other user can read it.
async function copyTemplate(template: string, fresh: string, uid: number | undefined): Promise<void> {
  ensureDirectory(fresh, { mode: 0o700, uid })
  const script = 'umask 077; exec cp -R --reflink=auto "$1/." "$2"'
  await run('sh', ['-c', script, 'copy', template, fresh], { timeoutSeconds, uid })
}

/** The user of the cluster can traverse the directory and owns entries of it, but cannot add or replace any. */
export async function ensureClusterDirectory(home: Home, paths: ClusterPaths): Promise<void> {
  await ensureClustersDirectory(`${home.path}/clusters`)
  ensureDirectory(paths.directory, { mode: 0o711 })
}

export async function ensureClustersDirectory(directory: string): Promise<void> {
  const isNew = !existsSync(directory)
  ensureDirectory(directory, { mode: 0o711 })
  // The flag makes ext4 spread the clusters over its block groups. Within one group, ext4 skips every inode that was
  // deleted in the last minutes, so that a copy takes five times as long after others were deleted. Other file systems
  // have neither the problem nor the flag.
  if (isNew) await run('chattr', ['+T', directory]).catch(() => undefined)
}
