import { tmpdir } from 'node:os'
import { checkBoxPart, listClosedUplinks } from '../../drivers/box/check.ts'
import { inspectSwap } from '../../drivers/host/facts.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { findPrivateGap } from '../../drivers/network/private.ts'
import { findDiskGap } from '../../drivers/volume/lifecycle.ts'
import { type Check, type Finding, ok, warning } from './finding.ts'

/** What sandboxes and machines need of this host, and what they lose without it. */
export const sandboxChecks: Record<string, Check> = {
  'sandbox layers': checkLayers,
  'sandbox network': checkNetwork,
  'sandbox filter': checkFilter,
  'private networks': checkPrivateNetworks,
  volumes: checkVolumes,
  'machine swap': checkSwap,
}

async function checkLayers(): Promise<Finding> {
  const why = await checkBoxPart('layers')
  if (why !== undefined) {
    return warning(
      `cannot be made: ${why}`,
      'Without them, sandboxes run as plain processes, not shut off from this machine.',
      isRoot()
        ? 'run Berth on Linux 5.19 or newer, outside of a container or in a privileged one'
        : 'run Berth as root',
    )
  }
  if (isRoot()) return ok('overlays with owners of their own')
  return warning(
    'overlays with one owner',
    'Sandboxes have one user inside, and their package managers do not work.',
    'run Berth as root',
  )
}

async function checkNetwork(): Promise<Finding> {
  const cost = 'Sandboxes have no network: programs in them reach nothing, and no URL reaches them.'
  if (!isRoot()) return warning('none for ordinary users', cost, 'run Berth as root')
  const why = await checkBoxPart('network')
  if (why !== undefined) {
    return warning(
      `cannot be made: ${why}`,
      cost,
      'apt-get install -y iproute2 nftables, or run Berth in a container with NET_ADMIN',
    )
  }
  const closed = listClosedUplinks()
  if (closed.length === 0) return ok('interfaces and rules for each sandbox')
  return ok(
    `interfaces and rules for each sandbox; ${closed.join(', ')} will pass on their packets once the first one starts`,
  )
}

async function checkPrivateNetworks(): Promise<Finding> {
  const why = await findPrivateGap()
  if (why === undefined) return ok('a bridge and rules for each, over IPv6')
  return warning(
    `cannot be made: ${why}`,
    'Machines of apps do not reach each other, have no names, and apps with a network of their own are refused.',
    isRoot() ? 'apt-get install -y iproute2 nftables, and switch IPv6 on' : 'run Berth as root',
  )
}

async function checkVolumes(): Promise<Finding> {
  const why = await findDiskGap(tmpdir())
  if (why === undefined) return ok('disks of their own')
  return warning(
    `directories, because disks cannot be mounted: ${why}`,
    'Nothing keeps a machine from writing more than its volume has, and snapshots may have half of what is being written.',
    isRoot() ? 'apt-get install -y e2fsprogs, and run Berth where loop devices are' : 'run Berth as root',
  )
}

function checkSwap(): Finding {
  const { present, limited } = inspectSwap()
  if (!present) return ok('none on this machine, so that none is given for `init.swap_size_mb`')
  if (limited) return ok('as much for each as its `init.swap_size_mb` says')
  return warning(
    'not limited, because this kernel does not count it for each machine',
    'A machine may use more swap than its `init.swap_size_mb` says.',
    isRoot() ? 'boot with swapaccount=1, or with control groups of version 2' : 'run Berth as root',
  )
}

async function checkFilter(): Promise<Finding> {
  const why = await checkBoxPart('filter')
  if (why === undefined) return ok('calls of the kernel can be refused')
  return warning(
    `cannot be applied: ${why}`,
    'Without it, sandboxes run as plain processes, not shut off from this machine.',
    'run Berth on a kernel with seccomp filters, on x64 or arm64',
  )
}
