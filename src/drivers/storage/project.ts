// Project quotas. Each limited directory has a project id, which its files carry. The ids of a home are from its range of
// uids, so that homes on one file system do not share any. A file per id, named by it, holds the path of its directory.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { relative } from 'node:path'
import { ensureDirectory, ensureFile } from '../host/atomic-file.ts'
import type { Home } from '../host/home.ts'
import { withLock } from '../host/lock.ts'
import { run } from '../host/process.ts'
import { driverProgram } from '../host/program.ts'

const timeoutSeconds = 600
const blockBytes = 4096
const program = driverProgram('storage/project.pl')

/** Returns the project id of a directory, and chooses one at the first call. Ids of directories that are gone are reused. */
export async function ensureProject(home: Pick<Home, 'path' | 'uidStart'>, directory: string): Promise<number> {
  const registry = `${home.path}/pool/project`
  const path = relative(home.path, directory)
  ensureDirectory(`${home.path}/pool`, { mode: 0o700 })
  ensureDirectory(registry, { mode: 0o700 })
  return (
    findProject(registry, path) ?? withLock(`${home.path}/pool/project.lock`, () => chooseProject(home, registry, path))
  )
}

function chooseProject(home: Pick<Home, 'path' | 'uidStart'>, registry: string, path: string): number {
  const found = findProject(registry, path)
  if (found !== undefined) return found
  const taken = new Map(listProjects(registry))
  let id = home.uidStart
  while (taken.has(id) && existsSync(`${home.path}/${taken.get(id)}`)) id++
  ensureFile(`${registry}/${id}`, path, { mode: 0o600 })
  return id
}

function findProject(registry: string, path: string): number | undefined {
  return listProjects(registry).find(([, owner]) => owner === path)?.[0]
}

function listProjects(registry: string): [number, string][] {
  return readdirSync(registry)
    .filter((name) => /^\d+$/.test(name))
    .map((name) => [Number(name), readFileSync(`${registry}/${name}`, 'utf8')])
}

export async function readProject(directory: string): Promise<number> {
  const { stdout } = await run('perl', [program, 'get', directory])
  return Number(stdout.trim())
}

/** Sets the project of everything in a directory, which nothing may write meanwhile. */
export async function assignProject(directory: string, project: number): Promise<void> {
  await run('perl', [program, 'set', String(project), directory], { timeoutSeconds })
}

export async function limitProject(mountPoint: string, project: number, bytes: number | undefined): Promise<void> {
  await run('xfs_quota', limitArguments(mountPoint, project, bytes))
}

/**
 * `-f` allows other file systems than XFS. A limit of 0 is none. Empty files count as one block each, because they occupy
 * an inode that counts as none.
 */
function limitArguments(mountPoint: string, project: number, bytes = 0): string[] {
  return ['-f', '-x', '-c', `limit -p bhard=${bytes} ihard=${Math.ceil(bytes / blockBytes)} ${project}`, mountPoint]
}
