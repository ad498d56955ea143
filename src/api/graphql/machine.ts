import type { LiveContext } from '../../live/context.ts'
import { regionOf } from '../../model/account/region.ts'
import type { MachineDetails } from '../../model/app/machine.ts'
import { machineAddress } from '../../model/network.ts'
import { toRfc3339 } from '../../model/time.ts'
import { configView } from '../app/machine-view.ts'
import { connection, type GraphqlNode, regionNode } from './view.ts'

/** The prefix length of the subnet of a machine, which has 16 bits below its address. */
const privateBits = 112

export function machineNode({ settings }: LiveContext, machine: MachineDetails): GraphqlNode {
  const { id, name, state, region, instanceId, slot, networkNumber } = machine
  const address = slot === null ? undefined : machineAddress(settings.homeNumber, networkNumber, slot)
  return {
    __typename: 'Machine',
    id,
    name,
    state,
    region,
    instanceId,
    config: configView(machine),
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

/** Lists the services of the machines of an app without duplicates. */
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

/** Describes the image of the newest machine. */
export function imageVersionNode(machines: MachineDetails[]): GraphqlNode | null {
  const newest = machines
    .filter(({ image }) => image !== null)
    .sort((a, b) => (a.updatedAt < b.updatedAt ? 1 : -1))
    .at(0)
  if (!newest?.image) return null
  const { registry, repository, tag, digest } = newest.image
  return { registry, repository, tag, digest, version: 'N/A' }
}
