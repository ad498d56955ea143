// The ports of a cluster. Another program may take a port before the cluster listens on it. Until the cluster is ready, it
// then simply gets other ports; afterwards clients know them, so they never change.
import { randomInt } from 'node:crypto'
import type { Cluster } from '../../model/postgres/cluster.ts'
import { changePorts, usedPorts } from '../../store/postgres/cluster.ts'
import { advance, type World, wait } from '../step.ts'

/** Searches from a random port, so that clusters created at the same time rarely choose the same ones. */
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

/** Moves the cluster to other ports if another program listens on one of its own; undefined otherwise. */
export async function leaveTakenPorts(cluster: Cluster, world: World) {
  const taken = (await findTakenServerPort(cluster, world)) ?? (await findTakenPoolerPort(cluster, world))
  if (taken === undefined) return undefined
  const { db, hosting } = world
  const ports = await pickPorts(hosting, await usedPorts(db))
  if (!ports) return advance('failed', noFreePorts(hosting))
  return wait(0, `another program took port ${taken}`, (tx) => changePorts(tx, cluster.id, ...ports))
}

/** The port of the server, if another program listens on it. */
export async function findTakenServerPort(
  { id, directPort }: Cluster,
  { hosting, postgres }: World,
): Promise<number | undefined> {
  if (directPort === null || (await hosting.canBind(directPort))) return undefined
  const { is } = await postgres.inspect(id)
  return is === 'stopped' || is === 'absent' ? directPort : undefined
}

/** The port of the pooler, if another program listens on it. */
export async function findTakenPoolerPort(
  { id, poolerPort }: Cluster,
  { hosting, pooler }: World,
): Promise<number | undefined> {
  if (poolerPort === null || (await hosting.canBind(poolerPort))) return undefined
  return (await pooler.inspectPooler(id)).is === 'running' ? undefined : poolerPort
}
