import pg from 'pg'
import { expect } from 'vitest'
import { type Home, openHome } from '../../src/drivers/host/home.ts'
import { isRoot } from '../../src/drivers/host/process.ts'
import type { PostgresDriver } from '../../src/drivers/postgres/driver.ts'
import { removeFirewall } from '../../src/drivers/postgres/firewall.ts'
import type { PoolerDriver } from '../../src/drivers/postgres/pooler/driver.ts'
import { poolerDriver } from '../../src/drivers/postgres/pooler/pooler.ts'
import { postgresDriver } from '../../src/drivers/postgres/server.ts'
import type { ProbeTarget } from '../../src/drivers/postgres/sql/driver.ts'
import { ensureToolchain } from '../../src/drivers/postgres/toolchain/toolchain.ts'
import type { Supervisor } from '../../src/drivers/s6/driver.ts'
import { s6Supervisor } from '../../src/drivers/s6/supervisor.ts'
import { newId } from '../../src/model/ids.ts'
import type { PostgresMajor } from '../../src/model/postgres/cluster.ts'
import { findPlan } from '../../src/model/postgres/plan.ts'
import type { ClusterSpec, PoolerSpec } from '../../src/model/postgres/spec.ts'
import type { UserRole } from '../../src/model/postgres/user.ts'
import { freePorts } from './port.ts'
import { removeTemporaryHome, temporaryDirectory } from './temporary-home.ts'
import { until } from './until.ts'

export const password = 'correct horse battery staple'

export interface TestCluster {
  id: string
  spec: ClusterSpec
  pooler: PoolerSpec
}

export interface ClusterBench {
  home: Home
  supervisor: Supervisor
  postgres: PostgresDriver
  poolers: PoolerDriver
  newCluster(major: PostgresMajor): Promise<TestCluster>
  /** Starts a cluster and sets the password of the default user. */
  startCluster(major: PostgresMajor): Promise<TestCluster>
  startPooler(cluster: TestCluster, change?: Partial<PoolerSpec>): Promise<void>
  addUser(cluster: TestCluster, name: string, role: UserRole): Promise<void>
  remove(): Promise<void>
}

/** Opens a home in which a test creates clusters with real servers. */
export async function openBench(directory = temporaryDirectory()): Promise<ClusterBench> {
  const home = await openHome(`${directory}/h`, { uidBase: 300_000, registry: `${directory}/registry` })
  const supervisor = s6Supervisor({ treeDirectory: home.tree, logDirectory: home.log })
  await supervisor.ensureTree()
  const postgres = postgresDriver({ home, supervisor })
  const poolers = poolerDriver({ home, supervisor, postgres })
  let uids = 0

  async function newCluster(major: PostgresMajor): Promise<TestCluster> {
    uids += 1
    const uid = isRoot() ? home.uidStart + uids : undefined
    const plan = findPlan('basic')!
    const [port, poolerPort] = await freePorts(2)
    const address = { uid, plan, listen: '127.0.0.1' }
    return {
      id: newId(),
      spec: {
        ...address,
        toolchain: await ensureToolchain(major, home),
        diskSizeGb: 10,
        hosts: ['pg.test'],
        port: port!,
      },
      pooler: { ...address, poolMode: 'session', port: poolerPort!, postgresPort: port! },
    }
  }

  return {
    home,
    supervisor,
    postgres,
    poolers,
    newCluster,
    async startCluster(major) {
      const cluster = await newCluster(major)
      await postgres.ensureData(cluster.id, cluster.spec)
      await postgres.ensureRunning(cluster.id, cluster.spec)
      await untilReady(postgres, cluster.id)
      await postgres.users.setPassword(cluster.id, 'fly-user', password)
      return cluster
    },
    async startPooler(cluster, change = {}) {
      const spec = { ...cluster.pooler, ...change }
      await poolers.ensurePooler(cluster.id, spec)
      await until(() =>
        postgres.probe(flyUser(spec.port)).then(
          () => true,
          () => false,
        ),
      )
    },
    addUser: (cluster, name, role) => postgres.users.create(cluster.id, { name, role, password }),
    async remove() {
      await removeFirewall(home)
      await removeTemporaryHome(home.path)
      await removeTemporaryHome(directory)
    },
  }
}

export async function untilReady(postgres: PostgresDriver, id: string): Promise<number> {
  const state = await postgres.waitUntilReady(id, 60)
  expect(state).toMatchObject({ is: 'ready', pid: expect.any(Number) })
  return (state as { pid: number }).pid
}

export function flyUser(port: number): ProbeTarget {
  return { host: '127.0.0.1', port, user: 'fly-user', password, database: 'fly-db' }
}

export async function connect(port: number, change: pg.ClientConfig = {}): Promise<pg.Client> {
  const client = new pg.Client({ ...flyUser(port), ...change })
  // Tests terminate sessions on purpose.
  client.on('error', () => undefined)
  await client.connect()
  return client
}

/** Runs a query in a session of its own. */
export async function ask(port: number, sql: string, change: pg.ClientConfig = {}): Promise<Record<string, unknown>[]> {
  const client = await connect(port, change)
  const result: pg.QueryResult | pg.QueryResult[] = await client.query(sql).finally(() => client.end())
  return (Array.isArray(result) ? result.at(-1)! : result).rows
}
