// The files of a cluster that the platform itself reads, in the data directory that belongs to the user of its server. Each
// is replaced by what a tenant could put there who runs programs as the server. The platform must not follow, block or
// fail, and must not take another cluster for the one that was changed.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { readOrCreateKey } from '../../../src/drivers/host/home.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import type { RestoreSpec } from '../../../src/drivers/postgres/restore/driver.ts'
import { finishRecovery, inspectRecovery } from '../../../src/drivers/postgres/restore/recovery.ts'
import { ask, type ClusterBench, openBench, type TestCluster, untilReady } from '../../support/cluster.ts'

const replacements: Record<string, (path: string, home: string) => void> = {
  'a link to a file of the host': (path) => symlinkSync('/etc/passwd', path),
  'a link to a secret of the platform': (path, home) => symlinkSync(`${home}/key`, path),
  'a dangling link': (path) => symlinkSync('/nonexistent', path),
  'a link to itself': (path) => symlinkSync(path, path),
  'a named pipe': (path) => execFileSync('mkfifo', [path]),
  'a directory': (path) => mkdirSync(path),
  'a huge sparse file': (path) => execFileSync('truncate', ['-s', '1T', path]),
  'binary content': (path) => writeFileSync(path, Buffer.alloc(3000, 0xff)),
  ...(isRoot() && {
    'a device': (path: string) => execFileSync('mknod', [path, 'c', '1', '5']),
    'a terminal': (path: string) => execFileSync('mknod', [path, 'c', '5', '0']),
  }),
}

let bench: ClusterBench

beforeAll(async () => {
  bench = await openBench()
  readOrCreateKey(bench.home)
})

afterAll(() => bench.remove())

describe.each(['16', '17'] as const)('the data directory of PostgreSQL %s', (major) => {
  let cluster: TestCluster
  let data: string

  beforeAll(async () => {
    cluster = await bench.startCluster(major)
    data = clusterPaths(bench.home, cluster.id).data
  })

  /** Replaces a file, calls a function, and puts the file back. */
  async function withReplaced<T>(name: string, kind: string, use: () => Promise<T>): Promise<T> {
    const path = `${data}/${name}`
    renameSync(path, `${path}.kept`)
    try {
      replacements[kind]!(path, bench.home.path)
      return await use()
    } finally {
      rmSync(path, { recursive: true, force: true })
      renameSync(`${path}.kept`, path)
    }
  }

  test.each(Object.keys(replacements))('may have %s as its lock file', async (kind) => {
    await withReplaced('postmaster.pid', kind, async () => {
      expect(await bench.postgres.inspect(cluster.id)).toMatchObject({ is: 'starting' })
      await bench.postgres.ensureRunning(cluster.id, cluster.spec)
      expect(await bench.postgres.query(cluster.id, 'postgres', 'select 1 as one')).toEqual([{ one: 1 }])
    })
    await untilReady(bench.postgres, cluster.id)
  })

  test.each(['PG_VERSION', 'postmaster.opts'])('is not asked for its %s', async (name) => {
    for (const kind of Object.keys(replacements)) {
      await withReplaced(name, kind, async () => {
        await bench.postgres.ensureRunning(cluster.id, cluster.spec)
        await bench.postgres.closeConnections(cluster.id)
        expect(await bench.postgres.query(cluster.id, 'postgres', 'select 1 as one')).toEqual([{ one: 1 }])
      })
    }
  })

  test.each(Object.keys(replacements))('may have %s as its settings', async (kind) => {
    const { home, supervisor, postgres } = bench
    const backup = { clusterId: cluster.id, label: 'x', startLsn: '0/1', stopLsn: '0/2' } as RestoreSpec['backup']
    const spec: RestoreSpec = { ...cluster.spec, backup, pieces: [], timeline: 1 }
    await withReplaced('postgresql.auto.conf', kind, async () => {
      // The cluster was never restored, so it has no timeline of its own; what matters is that the call returns.
      await expect(inspectRecovery({ home, supervisor, postgres }, cluster.id, spec)).rejects.toThrow('history file')
      await expect(finishRecovery({ home, supervisor, postgres }, cluster.id, spec)).rejects.toThrow('history file')
    })
  })

  test.each(Object.keys(replacements))('starts again after its server left %s as its lock file', async (kind) => {
    await bench.postgres.stop(cluster.id)
    replacements[kind]!(`${data}/postmaster.pid`, bench.home.path)
    await bench.postgres.ensureRunning(cluster.id, cluster.spec)
    await untilReady(bench.postgres, cluster.id)
    expect(await ask(cluster.spec.port, 'select 1 as one')).toEqual([{ one: 1 }])
  })

  test('is measured without following links', async () => {
    const before = await bench.postgres.measure(cluster.id, cluster.spec.uid)
    symlinkSync('/usr', `${data}/link`)
    try {
      expect(await bench.postgres.measure(cluster.id, cluster.spec.uid)).toBeLessThan(before + 1_000_000)
    } finally {
      rmSync(`${data}/link`)
    }
  })

  test('leaves files of the host as they were', () => {
    expect(readFileSync('/etc/passwd', 'utf8')).toMatch(/^root:/)
    expect(readFileSync(`${bench.home.path}/key`).length).toBe(32)
  })
})
