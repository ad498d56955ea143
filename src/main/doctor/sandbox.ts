import { tmpdir } from 'node:os'
import { checkBoxPart, listClosedUplinks } from '../../drivers/box/check.ts'
import { inspectSwap } from '../../drivers/host/cgroup-support.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { findPrivateNetworkProblem } from '../../drivers/network/private.ts'
import { findMountProblem } from '../../drivers/volume/lifecycle.ts'
import { type Check, type Finding, ok, warning } from './finding.ts'

/** The host features that sandboxes and machines depend on. */
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
      `not possible: ${why}`,
      'Without them, sandboxes run as plain processes that are not isolated from this machine.',
      isRoot()
        ? 'run Berth on Linux 5.19 or newer, outside of a container or in a privileged one'
        : 'run Berth as root',
    )
  }
  if (isRoot()) return ok('overlay mounts with mapped owners')
  return warning(
    'overlay mounts with a single owner',
    'Sandboxes have a single user, and their package managers do not work.',
    'run Berth as root',
  )
}

async function checkNetwork(): Promise<Finding> {
  const cost = 'Sandboxes have no network: they cannot connect anywhere, and their URLs do not work.'
  if (!isRoot()) return warning('not available to unprivileged users', cost, 'run Berth as root')
  const why = await checkBoxPart('network')
  if (why !== undefined) {
    return warning(
      `not possible: ${why}`,
      cost,
      'apt-get install -y iproute2 nftables, or run Berth in a container with NET_ADMIN',
    )
  }
  const closed = listClosedUplinks()
  if (closed.length === 0) return ok('an interface and firewall rules per sandbox')
  return ok(
    `an interface and firewall rules per sandbox; the first one to start enables forwarding on ${closed.join(', ')}`,
  )
}

async function checkPrivateNetworks(): Promise<Finding> {
  const why = await findPrivateNetworkProblem()
  if (why === undefined) return ok('a bridge and firewall rules per network, over IPv6')
  return warning(
    `not possible: ${why}`,
    'Machines of apps cannot reach each other and have no DNS names, and apps with their own network are refused.',
    isRoot() ? 'apt-get install -y iproute2 nftables, and enable IPv6' : 'run Berth as root',
  )
}

async function checkVolumes(): Promise<Finding> {
  const why = await findMountProblem(tmpdir())
  if (why === undefined) return ok('a disk image per volume')
  return warning(
    `directories, because disk images cannot be mounted: ${why}`,
    'The size of a volume is not enforced, and a snapshot taken during a write may be inconsistent.',
    isRoot() ? 'apt-get install -y e2fsprogs, and run Berth on a host with loop devices' : 'run Berth as root',
  )
}

function checkSwap(): Finding {
  const { present, limited } = inspectSwap()
  if (!present) return ok('none on this machine; `init.swap_size_mb` has no effect')
  if (limited) return ok('limited to `init.swap_size_mb` per machine')
  return warning(
    'not limited, because this kernel does not account for it per control group',
    'A machine may use more swap than its `init.swap_size_mb`.',
    isRoot() ? 'boot with swapaccount=1, or with control groups of version 2' : 'run Berth as root',
  )
}

async function checkFilter(): Promise<Finding> {
  const why = await checkBoxPart('filter')
  if (why === undefined) return ok('system calls can be filtered')
  return warning(
    `cannot be applied: ${why}`,
    'Without it, sandboxes run as plain processes that are not isolated from this machine.',
    'run Berth on a kernel with seccomp filters, on x64 or arm64',
  )
}
