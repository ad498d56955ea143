// What each program of a cluster sees of the host. The server runs tenants' SQL and sees least: its own data, its
// configuration and the PostgreSQL installation.
import { lookup } from 'node:dns/promises'
import { existsSync, realpathSync } from 'node:fs'
import { isIP } from 'node:net'
import { dirname } from 'node:path'
import type { Toolchain } from '../../model/postgres/toolchain.ts'
import type { Confinement } from '../confine/confine.ts'
import type { ClusterPaths } from './paths.ts'
import type { ClusterUsers, User } from './users.ts'

export interface Address {
  address: string
  port: number
}

/** Where the server listens in its own network namespace. */
export interface InnerAddresses {
  listen: string
  socketDirectory: string
}

/** The sockets for clients are opened outside and replace those that a program opens on these addresses. */
export function replacedAddresses(published: Address[]): string[] {
  return published.map((_, index) => `127.0.0.${index + 2}`)
}

/** The last address is for connections of the server to itself, such as those of dblink. */
export function innerAddresses(published: Address[]): InnerAddresses {
  return { listen: [...replacedAddresses(published), '127.0.0.1'].join(','), socketDirectory: '/tmp' }
}

export function serverConfinement(
  paths: ClusterPaths,
  users: ClusterUsers,
  { toolchain, subscribes }: { toolchain: Toolchain; subscribes?: boolean | undefined },
  published: Address[],
): Confinement {
  const source = subscribes ? [paths.sourceSockets] : []
  return {
    user: users.server,
    // Without the client programs, which may be unpacked later: another definition would restart the server.
    readable: [...visiblePaths(toolchain.bin, toolchain.share), paths.configuration, paths.tls, ...source],
    writable: [paths.data],
    names: users.names,
    listen: published,
    inside: true,
    lock: paths.lock,
    pidFile: paths.pid,
  }
}

/** Programs that connect to the server from outside, as another user: those of the archive, of backups and of drills. */
export function clientConfinement(paths: ClusterPaths, user: User | undefined, toolchain: Toolchain): Confinement {
  return { user, readable: [...programPaths(toolchain), paths.sockets] }
}

/** The directories of an installation with its client programs, which must exist. */
export function programPaths({ bin, tools, share }: Toolchain): string[] {
  return visiblePaths(bin, tools, share)
}

/** Directories below /usr are visible anyway. */
function visiblePaths(...paths: string[]): string[] {
  const directories = paths.map((path) => dirname(realpathSync(path)))
  return [...new Set(directories)].filter((path) => path !== '/' && !`${path}/`.startsWith('/usr/'))
}

/** Resolves what an operator can configure: addresses, `*` and host names, separated by commas. */
export async function publishedAddresses(listen: string, port: number): Promise<Address[]> {
  const hosts = listen.split(',').map((host) => host.trim())
  const addresses = await Promise.all(hosts.filter((host) => host !== '').map(resolveHost))
  return [...new Set(addresses.flat())].map((address) => ({ address, port }))
}

async function resolveHost(host: string): Promise<string[]> {
  if (host === '*') return existsSync('/proc/net/if_inet6') ? ['0.0.0.0', '::'] : ['0.0.0.0']
  if (isIP(host)) return [host]
  // Sorted, because name servers answer in any order, and another order would restart the server.
  return (await lookup(host, { all: true })).map(({ address }) => address).sort()
}
