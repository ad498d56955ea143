// The storage pool on a host whose own file system has no reflinks: what it makes possible, and what it costs.
import {
  type Cluster,
  type ClusterHost,
  createCluster,
  fill,
  openClusterHost,
  settle,
  transactionRate,
} from './cluster.ts'
import { type Benchmark, group } from './framework.ts'
import { type Platform, timeCommand } from './platform.ts'
import { compareRestores, makeSources, type ReflinkFixture } from './reflink.ts'
import type { Scope } from './scope.ts'
import { inTurn } from './turn.ts'

/** The image file is sparse. */
const imageSize = '32G'
const scale = 20 // about 300 MB, more than the caches of the server
const seconds = 8
const rounds = 5

interface Pair {
  pool: Side
  plain: Side
}

interface Side {
  host: ClusterHost
  cluster: Cluster
}

export const pools = [
  group<ReflinkFixture>({
    setUp: async (scope) => makeSources(await openPool(scope)),
    benchmarks: [
      {
        name: 'restore-pool',
        title: 'time to restore a scrubbed backup of about 2 GB in a storage pool until ready',
        target: { atMost: 1.3 },
        run: compareRestores,
      },
    ],
  }),
  group<Pair>({
    setUp: async (scope) => ({
      pool: await makeSide(await openPool(scope)),
      plain: await makeSide(await openClusterHost(scope)),
    }),
    benchmarks: [
      load('pool-pgbench', 'pgbench in a storage pool, 8 clients, transactions/s', []),
      load('pool-pgbench-select', 'pgbench -S in a storage pool, 8 clients, queries/s', ['-S']),
    ],
  }),
]

function openPool(scope: Scope): Promise<ClusterHost> {
  const create = ({ environment }: Platform) =>
    timeCommand(environment, 'storage', 'create', '--size', imageSize, '--sparse')
  return openClusterHost(scope, undefined, create)
}

async function makeSide(host: ClusterHost): Promise<Side> {
  const cluster = await createCluster(host, '17')
  await fill(cluster, scale)
  return { host, cluster }
}

function load(name: string, title: string, script: string[]): Benchmark<Pair> {
  return {
    name,
    title,
    target: { atLeast: 0.8 },
    async run({ pool, plain }) {
      const rate = async ({ host, cluster }: Side) => {
        await settle(host)
        return transactionRate(cluster, cluster.directPort, seconds, script)
      }
      const ratio = await inTurn(
        rounds,
        () => rate(pool),
        () => rate(plain),
      )
      const note = `${Math.round(ratio.measured)} and ${Math.round(ratio.reference)} per second; ${ratio.note}`
      const reference = 'the same in a home on the file system of the host'
      return { value: ratio.median, unit: '×', reference, note, disturbed: ratio.disturbed }
    },
  }
}
