import { globSync, statSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import {
  areOnSameDevice,
  canWrite,
  measureDisk,
  nearestExisting,
  supportsReflink,
} from '../../drivers/host/filesystem.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { findProjectMount, hasSubvolumes } from '../../drivers/storage/quota.ts'
import type { Config } from '../config.ts'
import { asRoot, type Finding, gigabyte, inGigabytes, ok, problem, warning } from './finding.ts'

export function checkHome(home: string): Finding {
  const elsewhere = 'or set BERTH_HOME to another directory'
  const place = nearestExisting(home)
  const cost = 'The platform stores everything there and does not start.'
  if (!statSync(place).isDirectory())
    return problem(`${place} is not a directory`, cost, `mv ${place} ${place}.old, ${elsewhere}`)
  if (!canWrite(place))
    return problem(`${place} is not writable`, cost, `${asRoot(`chown $USER ${place}`)}, ${elsewhere}`)
  const closed = isRoot() ? findClosedParent(home) : undefined
  if (closed) {
    const why = 'Clusters and sandboxes run as other users, which cannot access a home below it.'
    return problem(`other users cannot traverse ${closed}`, why, `chmod o+x ${closed}, ${elsewhere}`)
  }
  return ok(place === home ? home : `${home}, created at first start`)
}

function findClosedParent(home: string): string | undefined {
  let parent = dirname(home)
  while (parent !== '/') {
    const entry = statSync(parent, { throwIfNoEntry: false })
    if (entry && (entry.mode & 0o001) === 0) return parent
    parent = dirname(parent)
  }
  return undefined
}

export function checkDisk(home: string): Promise<Finding> {
  return checkSpace(home, 'BERTH_HOME', 'Clusters stop when the disk is full')
}

/** The repository may be on a disk of its own. */
export function checkRepositoryDisk({ repository }: Config): Promise<Finding> {
  return checkSpace(repository, 'BERTH_REPOSITORY', 'Archiving and backups stop when the disk is full')
}

async function checkSpace(directory: string, setting: string, cost: string): Promise<Finding> {
  const space = await measureDisk(nearestExisting(directory))
  if (!space) return warning('unknown', `${cost}.`, `df -h ${directory}`)
  const found = `${inGigabytes(space.freeBytes)} of ${inGigabytes(space.totalBytes)} free`
  const fix = `delete files, or set ${setting} to a directory on a larger disk`
  if (space.freeBytes < gigabyte) return problem(found, `${cost}, and it is nearly full.`, fix)
  if (space.freeBytes < 5 * gigabyte) return warning(found, 'Backups and restores need space for whole clusters.', fix)
  return ok(found)
}

/** Recoveries keep the damaged data directories of clusters. */
export function checkDamagedData(home: string): Finding {
  const kept = globSync(`${home}/clusters/*/damaged-*`)
  if (kept.length === 0) return ok('no recovery has left a damaged data directory')
  const clusters = [...new Set(kept.map((path) => basename(dirname(path))))]
  return warning(
    `${kept.length} damaged data ${kept.length === 1 ? 'directory' : 'directories'} of ${clusters.slice(0, 3).join(', ')}${clusters.length > 3 ? ' and others' : ''}`,
    'They take up disk space.',
    `./berth postgres recover ${clusters[0]} --discard`,
  )
}

export async function checkReflink(home: string): Promise<Finding> {
  const place = nearestExisting(home)
  const supported = await supportsReflink(place)
  if (supported) return ok(`the file system of ${place} shares blocks between copies`)
  return warning(
    supported === undefined ? `unknown: ${place} is not writable` : `the file system of ${place} copies every block`,
    'A restore copies the whole backup, which takes longer and needs the same space again.',
    isRoot() ? createPool : 'set BERTH_HOME to a directory on XFS or Btrfs',
  )
}

const createPool = './berth storage create, which moves the home to a file system of its own'

/** Checks whether the file system can limit what each cluster, sandbox and machine writes. */
export function checkStorage(place: string): Finding {
  if (hasSubvolumes(place)) return ok('Btrfs quotas limit what each cluster, sandbox and machine can write')
  const mount = findProjectMount(place)
  if (mount) return ok(`project quotas of ${mount.fileSystem} limit what each cluster, sandbox and machine can write`)
  return warning(
    `the file system of ${place} has no quotas that Berth can use`,
    'The storage of clusters, sandboxes and machines is measured but not limited, so one can fill the disk.',
    isRoot() ? createPool : 'run Berth as root, and then ./berth storage create',
  )
}

export function checkSecretFile(file: string, cost: string): Finding {
  const entry = statSync(file, { throwIfNoEntry: false })
  if (!entry) return ok(`${file}, created at first start`)
  const mode = (entry.mode & 0o777).toString(8).padStart(3, '0')
  if ((entry.mode & 0o077) === 0) return ok(`${file}, mode ${mode}`)
  return problem(`${file} has mode ${mode} and is accessible to other users`, cost, `chmod 600 ${file}`)
}

export function checkRepository({ home, repository }: Config): Finding {
  if (!areOnSameDevice(nearestExisting(home), nearestExisting(repository))) return ok(repository)
  return warning(
    `${repository} is on the same disk as the home`,
    'If that disk fails, clusters are lost together with their backups.',
    'set BERTH_REPOSITORY to a directory on another disk',
  )
}
