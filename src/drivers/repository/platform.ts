// The files of the platform itself: <root>/.platform/<name>. The dot distinguishes the directory from clusters.
import { existsSync } from 'node:fs'
import { chmod, copyFile, open, readdir, rename, rm } from 'node:fs/promises'
import { ensureDirectory, removeAbandonedFiles, temporaryPath } from '../host/atomic-file.ts'
import type { Repository } from './driver.ts'

export type PlatformFiles = Pick<Repository, 'putPlatformFile' | 'listPlatformFiles' | 'removePlatformFile'>

const namePattern = /^[a-z0-9][A-Za-z0-9._-]{0,127}$/

export function platformFiles(root: string): PlatformFiles {
  const directory = `${root}/.platform`
  const pathOf = (name: string) => {
    if (!namePattern.test(name)) throw new Error(`not the name of a platform file: ${JSON.stringify(name)}`)
    return `${directory}/${name}`
  }
  return {
    async putPlatformFile(name, sourcePath) {
      for (const path of [root, directory]) ensureDirectory(path, { mode: 0o700 })
      await removeAbandonedFiles(directory)
      await putFile(directory, pathOf(name), sourcePath)
    },
    async listPlatformFiles() {
      if (!existsSync(directory)) return []
      return (await readdir(directory)).filter((name) => namePattern.test(name)).sort()
    },
    removePlatformFile: (name) => rm(pathOf(name), { force: true }),
  }
}

async function putFile(directory: string, path: string, sourcePath: string): Promise<void> {
  const fresh = temporaryPath(directory)
  try {
    await copyFile(sourcePath, fresh)
    await chmod(fresh, 0o600)
    await sync(fresh)
    await rename(fresh, path)
    await sync(directory)
  } catch (cause) {
    await rm(fresh, { force: true })
    throw new Error(`write ${path}`, { cause })
  }
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r')
  await handle.sync()
}
