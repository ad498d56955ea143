// The storage pool on the host itself: what is refused, and what is left when the move is killed.
import { execFileSync, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { describeTree, fillHome, type PoolHome, poolHome } from '../../support/storage/pool.ts'
import { until } from '../../support/until.ts'

describe.runIf(isRoot())('creating a storage pool', () => {
  let home: PoolHome

  beforeEach(() => {
    home = poolHome()
    // Registers the home, so that it has all its own files.
    expect(home.run('status').status).toBe(1)
    fillHome(home.path)
  })

  afterEach(() => home.remove())

  const create = (...options: string[]) => home.run('storage', 'create', '--size', '700M', '--sparse', ...options)
  const report = () => JSON.parse(home.run('storage', 'show', '--json').stdout)
  const isMounted = (path: string) => spawnSync('mountpoint', ['-q', path]).status === 0

  test('moves every file, and keeps nothing of the original but the pool', () => {
    const before = describeTree(home.path)
    expect(create()).toMatchObject({ status: 0 })
    expect(describeTree(home.path)).toBe(before)
    expect(report()).toMatchObject({ pool: true, mounted: true, limits: true })
    expect(home.run('down').status).toBe(0)
    expect(readdirSync(home.path).sort()).toEqual(['number', 'pool'])
    expect(report()).toMatchObject({ pool: true, mounted: false })
    expect(home.run('storage', 'mount').status).toBe(0)
    expect(describeTree(home.path)).toBe(before)
  })

  test('changes nothing in a dry run', () => {
    const before = describeTree(home.path)
    const plan = create('--dry-run', '--json')
    expect(JSON.parse(plan.stdout)).toMatchObject({ image: `${home.path}/pool/data.img`, size_bytes: 700 * 1024 ** 2 })
    expect(describeTree(home.path)).toBe(before)
    expect(existsSync(`${home.path}/pool`)).toBe(false)
  })

  /** Kills the command as soon as the condition holds; returns false if it ended before. */
  async function killWhen(condition: () => boolean, delayMs = 0): Promise<boolean> {
    const child = home.start('storage', 'create', ...(home.step() ? [] : ['--size', '700M', '--sparse']))
    const ended = once(child, 'exit')
    child.stderr?.resume()
    while (child.exitCode === null && !condition()) await new Promise((resolve) => setTimeout(resolve, 2))
    if (delayMs > 0) await new Promise((resolve) => setTimeout(resolve, delayMs))
    child.kill('SIGKILL')
    await ended
    return child.signalCode === 'SIGKILL'
  }

  const copied = (unit: string) => existsSync(`${home.path}/pool/mount/${unit}`)
  const points: [string, (home: PoolHome) => boolean][] = [
    ['the file system is made', ({ step }) => step() === 'creating'],
    ['the copy begins', ({ step }) => step() === 'copying'],
    ['a cluster is being copied', () => copied('clusters/.copy~abcdefghijklmnop')],
    ['a cluster has been copied', () => copied('clusters/abcdefghijklmnop')],
    ['the record is in the pool', () => copied('pool/pool.json')],
    ['the original is being deleted', ({ step }) => step() === 'cleaning'],
  ]

  test.each(points)('can be killed when %s, and run again', async (_, isReached) => {
    const before = describeTree(home.path)
    await killWhen(() => isReached(home))
    const again = home.step() === undefined ? create() : home.run('storage', 'create')
    expect(again.status === 0 || again.stderr.includes('has a storage pool already')).toBe(true)
    expect(describeTree(home.path)).toBe(before)
    expect(report()).toMatchObject({ pool: true, mounted: true })
  })

  test('survives being killed again and again', async () => {
    const before = describeTree(home.path)
    for (const delayMs of [50, 150, 300, 500]) await killWhen(() => home.step() !== undefined, delayMs)
    await until(() => !report().pool || home.run('storage', 'mount').status === 0)
    if (!report().pool) expect(home.run('storage', 'create').status).toBe(0)
    expect(describeTree(home.path)).toBe(before)
  })

  test('is given up when the platform starts before the copy is complete', async () => {
    const before = describeTree(home.path)
    await killWhen(() => copied('clusters/abcdefghijklmnop'))
    expect(home.step()).toBe('copying')
    expect(home.run('storage', 'mount').stdout).toContain('There is no storage pool')
    expect(existsSync(`${home.path}/pool`)).toBe(false)
    expect(describeTree(home.path)).toBe(before)
  })

  test('finds a copy that differs from the original', () => {
    execFileSync('cp', ['-a', `${home.path}/log`, `${home.path}/copy`])
    const verify = () =>
      spawnSync('perl', [new URL('../../../src/drivers/storage/verify.pl', import.meta.url).pathname, 'log', 'copy'], {
        cwd: home.path,
        encoding: 'utf8',
      })
    expect(verify()).toMatchObject({ status: 0 })
    execFileSync('sh', ['-c', 'printf x | dd of=linked conv=notrunc status=none; touch -r ../log/linked linked'], {
      cwd: `${home.path}/copy`,
    })
    expect(verify().stderr).toContain('has another content')
    execFileSync('rm', [`${home.path}/copy/fifo`])
    expect(verify().stderr).toMatch(/other entries|another modification time/)
  })

  test('refuses sizes and places that cannot work', () => {
    expect(home.run('storage', 'create', '--size', '100M').stderr).toContain('needs at least')
    expect(home.run('storage', 'create', '--size', '900T').stderr).toContain('free space')
    expect(home.run('storage', 'create', '--size', 'big').stderr).toContain('number with a unit')
    expect(home.run('storage', 'grow', '--size', '2G').stderr).toContain('no storage pool')
    mkdirSync(`${home.path}/repository/other`)
    execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', `${home.path}/repository/other`])
    try {
      expect(create().stderr).toContain('is a mount point below the home')
    } finally {
      execFileSync('umount', [`${home.path}/repository/other`])
    }
  })

  test('refuses a device that is in use or holds data, and uses an empty one', () => {
    const before = describeTree(home.path)
    const on = (device: string, ...options: string[]) => home.run('storage', 'create', '--device', device, ...options)
    expect(on(`${home.path}/volume/sparse`).stderr).toContain('not a block device')
    expect(on('/dev/none').stderr).toContain('not a block device')
    const device = home.attachDevice(700)
    execFileSync('mkfs.ext4', ['-q', device])
    expect(on(device).stderr).toContain('--force deletes it')
    const mountPoint = `${home.path}/../mounted`
    mkdirSync(mountPoint)
    execFileSync('mount', [device, mountPoint])
    try {
      expect(on(device, '--force').stderr).toContain('in use')
    } finally {
      execFileSync('umount', [mountPoint])
    }
    expect(on(device, '--size', '1G', '--force').stderr).toContain('omit --size')
    expect(on(device, '--force')).toMatchObject({ status: 0 })
    expect(report()).toMatchObject({ pool: true, mounted: true, source: device })
    expect(describeTree(home.path)).toBe(before)
    expect(home.run('down').status).toBe(0)
    expect(isMounted(home.path)).toBe(false)
    expect(home.run('storage', 'mount').status).toBe(0)
    expect(describeTree(home.path)).toBe(before)
  })
})
