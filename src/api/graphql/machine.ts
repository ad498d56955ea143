import type { LiveContext } from '../../live/context.ts'
import { regionOf } from '../../model/account/region.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { machineAddress } from '../../model/network.ts'
import { toRfc3339 } from '../../model/time.ts'
import { connection, type GraphqlNode, regionNode } from './view.ts'

/** A machine's own part of its private network: 16 bits below its address are free. */
const privateBits = 112

export function machineNode({ settings }: LiveContext, machine: MachineDetails): GraphqlNode {
  const { id, name, state, region, instanceId, config, slot, networkNumber } = machine
  const address = slot === null ? undefined : machineAddress(settings.homeNumber, networkNumber, slot)
  return {
    __typename: 'Machine',
    id,
    name,
    state,
    region,
    instanceId,
    config,
    createdAt: toRfc3339(machine.createdAt),
    updatedAt: toRfc3339(machine.updatedAt),
    host: { id: region },
    ips: connection(
      address === undefined
        ? []
        : [{ id: address, family: 'v6', kind: 'privatenet', ip: address, maskSize: privateBits }],
    ),
    egressIpAddresses: connection([]),
  }
}

/** What the machines of an app offer, each service once. */
export function serviceNodes(machines: MachineDetails[]): GraphqlNode[] {
  const services = new Map<string, GraphqlNode>()
  for (const { protocol, internal_port, ports } of machines.flatMap(({ config }) => config.services ?? [])) {
    services.set(`${protocol} ${internal_port}`, {
      description: `${protocol ?? 'tcp'} to port ${internal_port}`,
      protocol: protocol ?? 'tcp',
      internalPort: internal_port,
      ports: (ports ?? []).map(({ port, start_port, end_port, handlers }) => ({
        port,
        startPort: start_port,
        endPort: end_port,
        handlers: handlers ?? [],
      })),
    })
  }
  return [...services.values()]
}

export function regionNodesOf(machines: MachineDetails[]): GraphqlNode[] {
  return [...new Set(machines.map(({ region }) => region))].sort().map((code) => regionNode(regionOf(code)))
}

/** Of the image that the newest of the machines runs. */
export function imageVersionNode(machines: MachineDetails[]): GraphqlNode | null {
  const newest = machines
    .filter(({ image }) => image !== null)
    .sort((a, b) => (a.updatedAt < b.updatedAt ? 1 : -1))
    .at(0)
  if (!newest?.image) return null
  const { registry, repository, tag, digest } = newest.image
  return { registry, repository, tag, digest, version: 'N/A' }
}
