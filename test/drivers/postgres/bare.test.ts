// Clusters on a host that cannot confine programs, such as a container that forbids namespaces. They work as elsewhere,
// with separate users, but see the host.
import { statSync } from 'node:fs'
import { afterAll, beforeAll, expect, test, vi } from 'vitest'
import { isRoot } from '../../../src/drivers/host/process.ts'
import { listChildren } from '../../../src/drivers/host/process-list.ts'
import { backupDriver } from '../../../src/drivers/postgres/backup/backup.ts'
import type { BackupState } from '../../../src/drivers/postgres/backup/driver.ts'
import { receiverDriver } from '../../../src/drivers/postgres/receiver/receiver.ts'
import { directoryRepository } from '../../../src/drivers/repository/directory.ts'
import { jobDriver } from '../../../src/drivers/s6/job.ts'
import { ask, type ClusterBench, openBench, type TestCluster, untilReady } from '../../support/cluster.ts'
import { until } from '../../support/until.ts'

vi.mock('../../../src/drivers/confine/probe.ts', () => ({
  canConfine: async () => false,
  findConfinementProblem: async () => 'a test says so',
}))

let bench: ClusterBench
let cluster: TestCluster

beforeAll(async () => {
  bench = await openBench()
  cluster = await bench.startCluster('17')
  await bench.startPooler(cluster)
})

afterAll(() => bench.remove())

test('answer through both endpoints', async () => {
  for (const port of [cluster.spec.port, cluster.pooler.port])
    expect(await ask(port, 'select 1 as one')).toEqual([{ one: 1 }])
})

test('run as users of their own', async () => {
  const service = await untilReady(bench.postgres, cluster.id)
  const [server] = listChildren(service)
  expect(server?.name).toBe('postgres')
  expect(statSync(`/proc/${server!.pid}`).uid).toBe(cluster.spec.uid ?? process.getuid!())
})

test('reload and restart', async () => {
  const pid = await untilReady(bench.postgres, cluster.id)
  await bench.postgres.ensureRunning(cluster.id, { ...cluster.spec, settings: { work_mem: '9MB' } })
  const setting = () => bench.postgres.query(cluster.id, 'postgres', 'show work_mem')
  await until(async () => (await setting())[0]?.work_mem === '9MB')
  expect(await untilReady(bench.postgres, cluster.id)).toBe(pid)
  process.kill(pid, 'SIGKILL')
  await until(async () => {
    const state = await bench.postgres.inspect(cluster.id)
    return state.is === 'ready' && state.pid !== pid
  })
  expect(await ask(cluster.spec.port, 'select 1 as one')).toEqual([{ one: 1 }])
})

test.runIf(isRoot())('do not admit their own user as superuser', async () => {
  const socket = `host=${bench.home.run}/${cluster.id} port=${cluster.spec.port} user=postgres dbname=postgres`
  await bench.postgres.query(cluster.id, 'fly-db', 'create extension if not exists dblink schema public')
  await expect(ask(cluster.spec.port, `select * from dblink('${socket}', 'select 1') as t (one int)`)).rejects.toThrow()
})

test('are archived and backed up', async () => {
  const { home, supervisor, postgres } = bench
  const repository = directoryRepository(`${home.path}/repository`)
  const backups = backupDriver({ home, jobs: jobDriver(supervisor), repository })
  const receivers = receiverDriver({ home, supervisor, postgres, repository })
  const { toolchain, uid, port } = cluster.spec
  await receivers.ensureSlot(cluster.id, 'berth_1')
  await receivers.ensureReceiver(cluster.id, { epoch: 1, slot: 'berth_1', toolchain, uid, port })
  await until(async () => {
    const slot = await receivers.inspectSlot(cluster.id, 'berth_1')
    return slot.is === 'ok' && slot.active
  })
  const label = '20261118-100000F'
  await backups.startBackup(cluster.id, label, { toolchain, uid, port })
  let state: BackupState = { is: 'absent' }
  await until(async () => {
    state = await backups.inspectBackup(cluster.id, label)
    return state.is !== 'running'
  })
  expect(state).toMatchObject({ is: 'done', timeline: 1 })
})
