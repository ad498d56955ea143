// The ports of a cluster. Chosen before anything listens on them, another program may be faster; until the cluster is
// ready nobody was told of them and others do as well. Afterwards clients know them, and they stay.
import { randomInt } from 'node:crypto'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { changePorts, usedPorts } from '../../store/postgres/cluster.ts'
import { advance, type World, wait } from '../step.ts'

/** Starts at a random place, so that clusters made at the same time rarely want the same ports. */
export async function pickPorts(hosting: World['hosting'], used: Set<number>): Promise<[number, number] | undefined> {
  const { first, last } = hosting.ports
  const count = last - first + 1
  const start = randomInt(count)
  const picked: number[] = []
  for (let i = 0; i < count; i++) {
    const port = first + ((start + i) % count)
    if (!used.has(port) && (await hosting.canBind(port))) picked.push(port)
    if (picked.length === 2) return [picked[0]!, picked[1]!]
  }
  return undefined
}

export function noFreePorts({ ports }: World['hosting']): string {
  return `no free ports in ${ports.first}-${ports.last}; widen BERTH_PG_PORTS`
}

/** Undefined unless another program listens where the cluster should. */
export async function leaveTakenPorts(cluster: Cluster, world: World) {
  const taken = (await findTakenServerPort(cluster, world)) ?? (await findTakenPoolerPort(cluster, world))
  if (taken === undefined) return undefined
  const { db, hosting } = world
  const ports = await pickPorts(hosting, await usedPorts(db))
  if (!ports) return advance('failed', noFreePorts(hosting))
  return wait(0, `another program took port ${taken}`, (tx) => changePorts(tx, cluster.id, ...ports))
}

/** The port of the server if it does not run and another program has its place. */
export async function findTakenServerPort(
  { id, directPort }: Cluster,
  { hosting, postgres }: World,
): Promise<number | undefined> {
  if (directPort === null || (await hosting.canBind(directPort))) return undefined
  const { is } = await postgres.inspect(id)
  return is === 'stopped' || is === 'absent' ? directPort : undefined
}

/** The port of the pooler if it does not run and another program has its place. */
export async function findTakenPoolerPort(
  { id, poolerPort }: Cluster,
  { hosting, pooler }: World,
): Promise<number | undefined> {
  if (poolerPort === null || (await hosting.canBind(poolerPort))) return undefined
  return (await pooler.inspectPooler(id)).is === 'running' ? undefined : poolerPort
}
