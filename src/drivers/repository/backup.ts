// The backups of a repository and their descriptions.
import { existsSync, readdirSync, renameSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { isDeepStrictEqual } from 'node:util'
import { readTextIfPresent } from '../host/file.ts'
import { run } from '../host/process.ts'
import { inspectUntrustedFile, readUntrustedFile } from '../host/untrusted-file.ts'
import { parseBackup, parseCluster } from './description.ts'
import type { BackupDescription, ClusterDescription } from './driver.ts'
import { sha256, syncDirectory, writeDurably } from './durable-file.ts'
import { discard, listNames, type RepositoryPaths, stagedPrefix, workDirectory } from './paths.ts'

// syncfs flushes all dirty data of the file system, not only that of the backup.
export const syncTimeoutSeconds = 600

export function listStaged(directory: string): string[] {
  if (!existsSync(directory)) return []
  const names = readdirSync(directory).filter((name) => name.startsWith(stagedPrefix))
  return names.map((name) => name.slice(stagedPrefix.length))
}

export async function commitBackup(
  root: string,
  paths: RepositoryPaths,
  description: BackupDescription,
): Promise<void> {
  const { clusterId, label } = description
  const staged = paths.staged(clusterId, label)
  const kept = findBackup(paths, clusterId, label)
  if (kept !== undefined) {
    const { manifestChecksum, ...rest } = kept
    if (!isDeepStrictEqual(rest, withoutUndefined(description)))
      throw new Error(`backup ${label} of ${clusterId} exists already`)
    return discard(root, staged)
  }
  const data = `${staged}/data`
  // Already moved if an earlier call was interrupted.
  if (inspectUntrustedFile(workDirectory(staged), 'data')?.isDirectory())
    renameSync(`${workDirectory(staged)}/data`, data)
  if (!existsSync(data)) throw new Error(`backup ${label} of ${clusterId} is not staged`)
  await rm(workDirectory(staged), { recursive: true, force: true })
  const manifest = readUntrustedFile(data, manifestName, maxManifestBytes)
  const manifestChecksum = manifest && sha256(manifest)
  await writeDurably(`${staged}/backup.json`, toJson({ ...description, manifestChecksum }))
  await run('sync', ['-f', staged], { timeoutSeconds: syncTimeoutSeconds })
  renameSync(staged, paths.backup(clusterId, label))
  await syncDirectory(`${paths.cluster(clusterId)}/backups`)
}

function withoutUndefined(description: BackupDescription): unknown {
  return JSON.parse(JSON.stringify(description))
}

export function toJson(description: BackupDescription | ClusterDescription): string {
  return `${JSON.stringify(description, null, 2)}\n`
}

const manifestName = 'backup_manifest'
// A manifest has about 150 bytes for each file of the cluster.
const maxManifestBytes = 128 * 1024 ** 2

/** Throws if the description is not valid or that of another backup. */
export function findBackup(paths: RepositoryPaths, id: string, label: string): BackupDescription | undefined {
  const text = readTextIfPresent(`${paths.backup(id, label)}/backup.json`)
  if (text === undefined) return undefined
  const found = described(`the description of backup ${label}`, () => parseBackup(text))
  if (found.clusterId === id && found.label === label) return found
  throw new Error(`backup ${label} is that of cluster ${found.clusterId} with the label ${found.label}`)
}

export function findForeignBackup(paths: RepositoryPaths, id: string, label: string): string | undefined {
  try {
    const found = findBackup(paths, id, label)
    if (!found) return 'its description is missing'
    const checksum = found.manifestChecksum
    if (checksum === undefined) return undefined
    const manifest = readUntrustedFile(`${paths.backup(id, label)}/data`, manifestName, maxManifestBytes)
    if (!manifest) return 'its manifest is missing'
    if (sha256(manifest) === checksum) return undefined
    return 'its manifest was changed or belongs to another cluster'
  } catch (error) {
    return (error as Error).message
  }
}

export function listBackups(paths: RepositoryPaths, id: string): { backups: BackupDescription[]; problems: string[] } {
  const backups: BackupDescription[] = []
  const problems: string[] = []
  for (const label of listNames(`${paths.cluster(id)}/backups`)) {
    try {
      const found = findBackup(paths, id, label)
      if (found) backups.push(found)
    } catch (error) {
      problems.push((error as Error).message)
    }
  }
  return { backups: backups.sort((a, b) => (a.startedAt < b.startedAt ? -1 : 1)), problems }
}

export function findDescription(paths: RepositoryPaths, id: string): ClusterDescription | undefined {
  const text = readTextIfPresent(`${paths.cluster(id)}/cluster.json`)
  if (text === undefined) return undefined
  const found = described('its description', () => parseCluster(text))
  if (found.clusterId !== undefined && found.clusterId !== id)
    throw new Error(`its description is that of cluster ${found.clusterId}`)
  return found
}

function described<T>(what: string, parse: () => T): T {
  try {
    return parse()
  } catch (error) {
    throw new Error(`${what} is not readable: ${(error as Error).message}`)
  }
}
