// Size limits of directories, on file systems that can enforce them.
import { execFileSync, spawnSync } from 'node:child_process'
import { chownSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { assignProject, ensureProject, readProject } from '../../../src/drivers/storage/project.ts'
import { storageQuota } from '../../../src/drivers/storage/quota.ts'
import { btrfs } from '../../support/storage/btrfs.ts'
import { type Filesystem, mountXfs } from '../../support/storage/xfs.ts'
import { temporaryDirectory } from '../../support/temporary-home.ts'

const megabyte = 1024 ** 2
const tenant = 300_200

function writes(directory: string, megabytes: number, name = `file-${megabytes}`): boolean {
  const command = ['--reuid', String(tenant), '--regid', String(tenant), '--clear-groups', 'fallocate', '-l']
  return spawnSync('setpriv', [...command, `${megabytes}M`, name], { cwd: directory }).status === 0
}

describe.runIf(isRoot())('on Btrfs', () => {
  const place = btrfs()
  let home: string

  beforeAll(() => {
    home = place.make()
  })

  afterAll(() => place.remove())

  test('a directory is limited, and its neighbor is not affected', async () => {
    const quota = storageQuota({ path: home })
    expect(await quota.isPossible()).toBe(true)
    for (const name of ['one', 'other']) {
      await quota.ensureDirectory(`${home}/${name}`)
      await quota.ensureDirectory(`${home}/${name}`)
      await quota.ensureLimit(`${home}/${name}`, 64 * megabyte)
      chownSync(`${home}/${name}`, tenant, tenant)
    }
    expect(writes(`${home}/one`, 50)).toBe(true)
    expect(writes(`${home}/one`, 40)).toBe(false)
    expect(writes(`${home}/other`, 50)).toBe(true)
    await quota.ensureLimit(`${home}/one`, 256 * megabyte)
    expect(writes(`${home}/one`, 100)).toBe(true)
    await quota.ensureLimit(`${home}/other`, undefined)
    expect(writes(`${home}/other`, 100)).toBe(true)
  })

  test('an interrupted creation is completed, and a removed directory gets its limit again', async () => {
    const quota = storageQuota({ path: home })
    execFileSync('btrfs', ['subvolume', 'create', `${home}/.new~again`])
    for (let life = 0; life < 2; life++) {
      await quota.ensureDirectory(`${home}/again`)
      await quota.ensureLimit(`${home}/again`, 64 * megabyte)
      chownSync(`${home}/again`, tenant, tenant)
      expect(writes(`${home}/again`, 100)).toBe(false)
      rmSync(`${home}/again`, { recursive: true })
    }
    expect(existsSync(`${home}/again`)).toBe(false)
  })

  test('a directory that was not made for limits is left alone', async () => {
    const quota = storageQuota({ path: home })
    mkdirSync(`${home}/plain`)
    await quota.ensureLimit(`${home}/plain`, 1 * megabyte)
    chownSync(`${home}/plain`, tenant, tenant)
    expect(writes(`${home}/plain`, 10)).toBe(true)
  })
})

test('without quotas nothing is limited, and nothing fails', async () => {
  const home = temporaryDirectory()
  try {
    const quota = storageQuota({ path: home, uidStart: 1 })
    await quota.ensureDirectory(`${home}/one`)
    await quota.ensureLimit(`${home}/one`, 1)
    expect(await quota.isPossible()).toBe(false)
    expect(readdirSync(home)).toEqual([])
  } finally {
    rmSync(home, { recursive: true, force: true })
  }
})

// The ids of projects need no quotas in the kernel, so that they can be tested on every XFS.
describe.runIf(isRoot())('projects', () => {
  let place: Filesystem

  beforeAll(() => {
    place = mountXfs()!
  })

  afterAll(() => place?.remove())

  const directory = (name: string) => `${place.directory}/${name}`
  const home = () => ({ path: place.directory, uidStart: 300_000 })

  test('each directory has an id of its own, which is used again when it is gone', async () => {
    const names = Array.from({ length: 5 }, (_, nth) => `sandbox-${nth}`)
    for (const name of names) mkdirSync(directory(name))
    const ids = await Promise.all(names.map((name) => ensureProject(home(), directory(name))))
    expect([...ids].sort()).toEqual([300_000, 300_001, 300_002, 300_003, 300_004])
    expect(await ensureProject(home(), directory('sandbox-3'))).toBe(ids[3])
    rmSync(directory('sandbox-3'), { recursive: true })
    mkdirSync(directory('later'))
    expect(await ensureProject(home(), directory('later'))).toBe(ids[3])
  })

  test('files inherit the id, links are not followed, and a directory without one accepts renamed files', async () => {
    mkdirSync(`${directory('box')}/inner`, { recursive: true })
    mkdirSync(directory('outside'))
    symlinkSync(directory('outside'), `${directory('box')}/link`)
    execFileSync('mkfifo', [`${directory('box')}/fifo`])
    await assignProject(directory('box'), 4711)
    writeFileSync(`${directory('box')}/inner/new`, '')
    for (const path of ['box', 'box/inner', 'box/inner/new']) expect(await readProject(directory(path))).toBe(4711)
    expect(await readProject(directory('outside'))).toBe(0)
    await assignProject(directory('outside'), 0)
    renameSync(`${directory('box')}/inner`, `${directory('outside')}/inner`)
    await assignProject(`${directory('outside')}/inner`, 0)
    expect(await readProject(directory('outside/inner/new'))).toBe(0)
    await expect(readProject(`${directory('box')}/link`)).rejects.toThrow()
  })
})
