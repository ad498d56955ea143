// A server that a tenant has taken over answers the programs that back it up and archive its WAL. Whatever it sends, they
// write nothing outside of their own directory, and the platform follows nothing that they wrote.
import { chmodSync, existsSync, lstatSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { ensureDirectory } from '../../../src/drivers/host/atomic-file.ts'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { backupDriver } from '../../../src/drivers/postgres/backup/backup.ts'
import type { BackupDriver, BackupState } from '../../../src/drivers/postgres/backup/driver.ts'
import { clusterPaths } from '../../../src/drivers/postgres/paths.ts'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import type { Repository } from '../../../src/drivers/repository/driver.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { listenAsServer, type Member } from '../../support/attack/fake-server.ts'
import { type ClusterBench, openBench, type TestCluster } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

let bench: ClusterBench
let repository: Repository
let backups: BackupDriver
let cluster: TestCluster
let outside: string
let count = 0

beforeAll(async () => {
  bench = await openBench()
  repository = directoryRepository(`${bench.home.path}/repository`)
  backups = backupDriver({ home: bench.home, jobs: jobDriver(bench.supervisor), repository })
  cluster = await bench.newCluster('17')
  const { sockets } = clusterPaths(bench.home, cluster.id)
  ensureDirectory(sockets, { mode: 0o710, ...(isRoot() && { uid: 0, gid: cluster.spec.uid }) })
  outside = `${bench.home.path}/outside`
  mkdirSync(outside)
  chmodSync(outside, 0o777)
})

afterEach(() => {
  for (const name of readdirSync(outside)) rmSync(`${outside}/${name}`, { recursive: true })
})

afterAll(() => bench.remove())

async function backUp(members: Member[], archive?: string): Promise<BackupState> {
  count += 1
  const label = `20261118-0000${String(count).padStart(2, '0')}F`
  const socket = `${clusterPaths(bench.home, cluster.id).sockets}/.s.PGSQL.${cluster.spec.port}`
  const server = await listenAsServer(socket, members, archive)
  chmodSync(socket, 0o666)
  try {
    await backups.startBackup(cluster.id, label, cluster.spec)
    let state: BackupState = { is: 'absent' }
    await until(async () => {
      state = await backups.inspectBackup(cluster.id, label)
      return state.is !== 'running'
    })
    return state
  } finally {
    server.close()
    await backups.abandonBackup(cluster.id, label)
  }
}

const plain: Member = { name: 'PG_VERSION', content: '17\n' }

test('receives what the server sends', async () => {
  // The copy itself succeeded: only its manifest is not complete.
  const reason = expect.stringContaining('The copy differs from its checksums')
  expect(await backUp([plain])).toMatchObject({ is: 'failed', reason })
})

const climbing = Array.from({ length: 12 }, (_, depth) => `${'../'.repeat(depth + 1)}escaped`)

test.each(climbing)('writes nothing through the member %s', async (name) => {
  const before = listAbove()
  await backUp([plain, { name, content: 'escaped' }])
  expect(listAbove()).toEqual(before)
})

test('follows no links of an archive out of its directory', async () => {
  const links = [outside, '/', '/proc/self/root', '/proc/1/root', '../../../../..', '..']
  for (const link of links) {
    const members = [
      { name: 'link', link },
      { name: `link/${outside}/escaped`, content: 'escaped' },
      { name: 'link/escaped', content: 'escaped' },
    ]
    await backUp([plain, ...members])
  }
  expect(readdirSync(outside)).toEqual([])
  expect(listAbove().some((path) => path.includes('escaped'))).toBe(false)
})

test('writes no manifest through a link', async () => {
  await backUp([plain, { name: 'backup_manifest', link: `${outside}/manifest` }])
  expect(existsSync(`${outside}/manifest`)).toBe(false)
})

test.each(['../evil.tar', '/evil.tar', `${'../'.repeat(9)}evil.tar`])('accepts no archive named %s', async (name) => {
  expect(await backUp([plain], name)).toMatchObject({ is: 'failed' })
})

/** Everything above the directory of a staged backup, in which a climbing name could end. */
function listAbove(): string[] {
  const root = `${bench.home.path}/repository`
  const directories = ['/', '/tmp', bench.home.path, root, `${root}/${cluster.id}`]
  return directories
    .flatMap((path) => (existsSync(path) ? readdirSync(path).map((name) => `${path}/${name}`) : []))
    .filter((path) => !path.startsWith('/tmp/') || path.includes('escaped') || path.startsWith(bench.home.path))
    .filter((path) => !/\/(repository|\.trash|backups|[a-z0-9]{16})$/.test(path))
}

test.each([
  ['a link', (path: string) => symlinkSync('/etc/passwd', path)],
  ['a dangling link', (path: string) => symlinkSync(`${outside}/missing`, path)],
  ['a directory', (path: string) => mkdirSync(path)],
  ['a huge file', (path: string) => writeFileSync(path, 'x'.repeat(200_000))],
] as const)('does not publish a backup whose own files were replaced by %s', async (_, replace) => {
  const label = '20261118-120000F'
  for (const name of ['started_at', 'stopped_at', 'data/backup_manifest']) {
    const directory = await repository.stageBackup(cluster.id, label)
    mkdirSync(`${directory}/data`)
    const files = { started_at: '1', stopped_at: '2', 'data/backup_manifest': '{}' }
    for (const [file, text] of Object.entries(files)) writeFileSync(`${directory}/${file}`, text)
    rmSync(`${directory}/${name}`)
    replace(`${directory}/${name}`)
    const jobs = jobDriver(bench.supervisor)
    await jobs.ensureJob(`backup-${cluster.id}`, { command: ['/bin/true'] })
    await until(async () => (await jobs.inspectJob(`backup-${cluster.id}`)).is === 'ended')
    expect(await backups.inspectBackup(cluster.id, label)).toMatchObject({ is: 'failed' })
    await backups.abandonBackup(cluster.id, label)
  }
})

test('writes its description beside what the server sent, not through a link', async () => {
  const label = '20261118-130000F'
  const directory = await repository.stageBackup(cluster.id, label)
  mkdirSync(`${directory}/data`)
  symlinkSync(`${outside}/described`, `${directory}/backup.json`)
  symlinkSync(`${outside}/described`, `${directory}/data/backup.json`)
  const names = { clusterId: cluster.id, clusterName: 'shop', orgSlug: 'acme', label }
  const positions = { epoch: 1, pgMajor: '17', timeline: 1, startLsn: '0/1', stopLsn: '0/2', sizeBytes: 1 }
  const times = { startedAt: '2026-11-18T00:00:00Z', stoppedAt: '2026-11-18T00:00:01Z' }
  await repository.commitBackup({ ...names, ...positions, ...times, settings: {} })
  expect(existsSync(`${outside}/described`)).toBe(false)
  const kept = repository.backupData(cluster.id, label)
  expect(lstatSync(`${kept}/../backup.json`).isFile()).toBe(true)
})
