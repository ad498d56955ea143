import { existsSync } from 'node:fs'
import { findConfinementProblem } from '../../drivers/confine/probe.ts'
import { type ControlGroups, inspectControlGroups } from '../../drivers/host/cgroup-support.ts'
import {
  findUserName,
  inspectUserNamespaces,
  isClockPlausible,
  measureMemory,
  readOpenFileLimit,
} from '../../drivers/host/facts.ts'
import { readTextIfPresent } from '../../drivers/host/file.ts'
import { isRoot } from '../../drivers/host/process.ts'
import { nextCommands } from '../install.ts'
import { asRoot, type Finding, gigabyte, inGigabytes, nameUserCommand, ok, problem, warning } from './finding.ts'

export function checkUser(): Finding {
  const name = findUserName()
  if (name !== undefined) return ok(name)
  const cost = 'PostgreSQL does not run as a user without a name, and the platform does not start.'
  return problem(`number ${process.getuid?.()}, without a name`, cost, nameUserCommand())
}

export async function checkClusterIsolation(): Promise<Finding> {
  const why = await findConfinementProblem()
  if (why === undefined) return ok('namespaces, a system call filter and sockets outside of their view')
  return warning(
    `not possible: ${why}`,
    'Servers of clusters see the files, processes and network of this machine, so a tenant who takes one over is on this machine.',
    'apt-get install -y bubblewrap, and run Berth on Linux 5.9 or newer, outside of a container or in a privileged one',
  )
}

export async function checkUserNamespaces(): Promise<Finding> {
  const state = await inspectUserNamespaces()
  if (state.usable) return ok(`usable, tested with ${state.by}`)
  return warning(
    `not usable: ${state.why}`,
    'Without them, apps and sandboxes run as plain processes that are not isolated from this machine.',
    allowNamespacesCommand(),
  )
}

function allowNamespacesCommand(): string {
  const isSet = (name: string, value: string) => readTextIfPresent(`/proc/sys/${name}`)?.trim() === value
  if (isSet('kernel/apparmor_restrict_unprivileged_userns', '1'))
    return asRoot('sysctl -w kernel.apparmor_restrict_unprivileged_userns=0')
  if (isSet('kernel/unprivileged_userns_clone', '0')) return asRoot('sysctl -w kernel.unprivileged_userns_clone=1')
  if (isSet('user/max_user_namespaces', '0')) return asRoot('sysctl -w user.max_user_namespaces=15000')
  return 'run Berth outside of a container, or in one that may create user namespaces'
}

const neededControllers = ['cpu', 'memory', 'pids']

// Version 2 has not been tried on a real host yet.
const testedGroups = ['v1']

export function checkControlGroups(): Finding {
  return { ...judgeControlGroups(), tested: testedGroups }
}

function judgeControlGroups(): Finding {
  const groups = inspectControlGroups()
  const lacking = neededControllers.filter((controller) => !groups.writable.includes(controller))
  if (lacking.length === 0) return ok(`${groups.kind}, with ${neededControllers.join(', ')}`)
  return warning(
    groups.kind === 'none' ? 'none' : `${groups.kind}, without permission to limit ${lacking.join(', ')}`,
    'Without them, apps and sandboxes can use all memory and CPUs of this machine.',
    isRoot()
      ? 'mount cgroup2 at /sys/fs/cgroup, writable'
      : delegateCommands(groups, existsSync('/run/systemd/system')),
  )
}

/** Unprivileged users have only the controllers that systemd delegates to them, and only with version 2. */
export function delegateCommands({ kind, writable }: ControlGroups, hasSystemd: boolean): string {
  if (kind !== 'v2' || !hasSystemd) return 'run Berth as root'
  if (writable.length === 0) return ['./berth install', ...nextCommands].join(' && ')
  return `sudo systemctl edit user@.service, add the lines [Service] and Delegate=${neededControllers.join(' ')}, and log in again`
}

export function checkMemory(): Finding {
  const { totalBytes, availableBytes } = measureMemory()
  const found = `${inGigabytes(availableBytes)} of ${inGigabytes(totalBytes)} available`
  if (availableBytes >= gigabyte) return ok(found)
  return warning(found, 'The kernel may kill clusters and apps when memory runs out.', 'free or add memory')
}

// The edge needs a descriptor per connection, and s6-svscan two per service.
const minOpenFiles = 8192

export function checkOpenFiles(): Finding {
  const limit = readOpenFileLimit()
  if (limit === undefined) return ok('unknown')
  const found = Number.isFinite(limit) ? `${limit} per process` : 'unlimited'
  if (limit >= minOpenFiles) return ok(found)
  return warning(
    found,
    'Each connection and each supervised service needs some; when none are left, new ones are refused.',
    'ulimit -n 65536 before ./berth up, or install it with ./berth install',
  )
}

export function checkClock(): Finding {
  const found = new Date().toISOString()
  if (isClockPlausible()) return ok(found)
  return problem(
    `${found}, which is before the release of this version of Berth`,
    'Point-in-time restores use this clock, and certificates are not valid yet.',
    asRoot('timedatectl set-ntp true'),
  )
}
