import { existsSync, renameSync, rmSync } from 'node:fs'
import { ensureDirectory, freshName, removeAbandoned } from '../host/fresh.ts'
import type { Home } from '../host/home.ts'
import { run } from '../host/process.ts'
import { reidentify } from './identity.ts'
import { type ClusterPaths, clusterPaths } from './paths.ts'
import { ensureTemplate } from './template.ts'
import type { Toolchain } from './toolchain/toolchain.ts'

export interface DataOptions {
  toolchain: Toolchain
  uid?: number | undefined
}

// Both wait for the disk, and others may write to it as well.
const timeoutSeconds = 300

/** A new data directory with an identity of its own, durable before it is there. Nothing when there is one. */
export async function ensureData(home: Home, id: string, options: DataOptions): Promise<void> {
  const paths = clusterPaths(home, id)
  if (existsSync(paths.data)) return
  const template = await ensureTemplate(options.toolchain, home)
  await ensureClusterDirectory(home, paths)
  await removeAbandoned(paths.directory)
  const fresh = freshName(paths.directory)
  try {
    await copy(template, fresh, options.uid)
    reidentify(fresh)
    await run('sync', ['-f', fresh], { timeoutSeconds })
    renameSync(fresh, paths.data)
  } catch (cause) {
    rmSync(fresh, { recursive: true, force: true })
    // Another process was first, and both made the same.
    if (!existsSync(paths.data)) throw new Error(`create the data directory of cluster ${id}`, { cause })
  }
}

// As the user of the cluster, so that all of it is his from the beginning, and nobody else's business.
async function copy(template: string, fresh: string, uid: number | undefined): Promise<void> {
  ensureDirectory(fresh, { mode: 0o700, uid })
  const script = 'umask 077; exec cp -R --reflink=auto "$1/." "$2"'
  await run('sh', ['-c', script, 'copy', template, fresh], { timeoutSeconds, uid })
}

/** Passable for the user of the cluster, who owns what he needs below it and can replace nothing in it. */
export async function ensureClusterDirectory(home: Home, paths: ClusterPaths): Promise<void> {
  await ensureClustersDirectory(`${home.path}/clusters`)
  ensureDirectory(paths.directory, { mode: 0o711 })
}

async function ensureClustersDirectory(directory: string): Promise<void> {
  const isNew = !existsSync(directory)
  ensureDirectory(directory, { mode: 0o711 })
  // Tells ext4 to spread the clusters over the disk. In one place it looks at every file that was deleted there in the
  // last minutes before it makes one, so that a copy takes five times as long after others were deleted. Other file
  // systems have neither the problem nor the flag.
  if (isNew) await run('chattr', ['+T', directory]).catch(() => undefined)
}
