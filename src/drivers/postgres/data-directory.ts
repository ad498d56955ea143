// The data directory of a cluster as files: whether the most important ones exist, and where a damaged one is kept.
import { closeSync, existsSync, fsyncSync, lstatSync, openSync, readdirSync, renameSync } from 'node:fs'
import type { Home } from '../host/home.ts'
import { emptyTrash, moveToTrash } from '../host/trash.ts'
import { inspectUntrustedFile } from '../host/untrusted-file.ts'
import type { DataDirectories } from './driver.ts'
import { clusterPaths } from './paths.ts'

/** Without one of these a server cannot start, but a running server may not notice that they are gone. */
const neededFiles = ['PG_VERSION', 'global/pg_control']
const neededDirectories = ['base', 'base/1', 'global', 'pg_wal', 'pg_xact']

export function dataDirectories(home: Home): DataDirectories {
  return {
    findProblem: (id) => findProblem(clusterPaths(home, id).data),
    moveAside: (id, name) => moveAside(home, id, name),
    discard(id) {
      moveToTrash(home, clusterPaths(home, id).data)
      emptyTrash(home)
    },
    listAside: (id) => listAside(clusterPaths(home, id).directory),
    removeAside(id, names) {
      const { directory } = clusterPaths(home, id)
      const known = new Set(listAside(directory))
      for (const name of names.filter((each) => known.has(each))) moveToTrash(home, `${directory}/${name}`)
      emptyTrash(home)
    },
  }
}

function findProblem(data: string): string | undefined {
  if (!lstatSync(data, { throwIfNoEntry: false })?.isDirectory()) return 'its data directory is gone'
  const missing =
    neededDirectories.find((path) => !inspectUntrustedFile(data, path)?.isDirectory()) ??
    neededFiles.find((path) => !inspectUntrustedFile(data, path)?.isFile())
  return missing && `${missing} is missing from its data directory`
}

const asidePattern = /^damaged-\d{8}-\d{6}$/

/** A repeated call does nothing: the target exists, or there was nothing to move. */
function moveAside(home: Home, id: string, name: string): void {
  if (!asidePattern.test(name)) throw new Error(`not the name of a damaged data directory: ${JSON.stringify(name)}`)
  const { directory, data } = clusterPaths(home, id)
  const target = `${directory}/${name}`
  if (existsSync(target) || !lstatSync(data, { throwIfNoEntry: false })) return
  renameSync(data, target)
  const descriptor = openSync(directory, 'r')
  fsyncSync(descriptor)
  closeSync(descriptor)
}

function listAside(directory: string): string[] {
  if (!existsSync(directory)) return []
  return readdirSync(directory)
    .filter((name) => asidePattern.test(name))
    .sort()
}
