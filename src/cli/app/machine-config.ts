// Builds parts of a machine's configuration from command-line options and deployment files.
import { InvalidArgumentError } from 'commander'
import { UsageError } from '../errors.ts'
import type { MachineConfig, Service } from './machine-find.ts'

/** Removes properties that are undefined. */
export function omitUndefined<T extends object>(all: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]?: Exclude<T[K], undefined>
  }
}

interface GuestOptions {
  cpu_kind: string | undefined
  cpus: number | undefined
  memory_mb: number | undefined
}

/** Expands a named size such as `shared-cpu-2x`. The other options override its values. */
export function parseGuest(size: string | undefined, options: GuestOptions): Pick<MachineConfig, 'size' | 'guest'> {
  const own = omitUndefined(options)
  if (size === undefined) return Object.keys(own).length > 0 ? { guest: own } : {}
  const match = /^(?:(shared)-cpu|performance)-(\d{1,2})x$/.exec(size)
  // The platform knows which other sizes exist.
  if (!match) return { size }
  const [, shared, cpus] = match
  return { guest: { cpu_kind: shared ? 'shared' : 'performance', cpus: Number(cpus), ...own } }
}

/** Reads `512`, `512mb` or `1gb` as megabytes. */
export function parseMemory(text: string): number {
  const match = /^(\d{1,7})\s*(mb|gb)?$/i.exec(text)
  if (!match) throw new InvalidArgumentError('Write a size such as 512mb or 1gb.')
  return Number(match[1]) * (match[2]?.toLowerCase() === 'gb' ? 1024 : 1)
}

/** Reads `[port:]internal[/tcp|udp][:handler…]`, such as `80:8080/tcp:http`, `443:8080/tcp:tls:http` or `5432`. */
export function parsePort(text: string): { port: number; service: Omit<Service, 'ports'>; handlers: string[] } {
  const match = /^(?:(\d{1,5}):)?(\d{1,5})(?:\/(tcp|udp))?((?::[a-z_]+)*)$/.exec(text)
  if (!match) throw new UsageError(`--port must be of the form 80:8080/tcp:http, not "${text}"`)
  const [, outer, inner, protocol = 'tcp', handlers] = match
  return {
    port: Number(outer ?? inner),
    service: { protocol, internal_port: Number(inner) },
    handlers: handlers!.split(':').filter(Boolean),
  }
}

/** Combines ports that forward to the same internal port into one service. */
export function parseServices(texts: string[]): Service[] {
  const services = new Map<string, Service & { ports: object[] }>()
  for (const { port, service, handlers } of texts.map(parsePort)) {
    const key = `${service.internal_port}/${service.protocol}`
    const known = services.get(key) ?? { ...service, ports: [] }
    services.set(key, known)
    known.ports.push({ port, handlers })
  }
  return [...services.values()]
}

/** Reads `vol_…:/path` (a volume id) or `name:/path` (a volume name). */
export function parseMount(text: string): NonNullable<MachineConfig['mounts']>[number] {
  const match = /^([^:]+):(\/.+)$/.exec(text)
  if (!match) throw new UsageError(`--volume must be of the form data:/path, not "${text}"`)
  const [, volume, path] = match as unknown as [string, string, string]
  return volume.startsWith('vol_') ? { volume, path } : { name: volume, path }
}

/** With containers, the image is that of the one called `app`, or else of the first. */
export function withImage(config: Omit<MachineConfig, 'image'>, image: string): MachineConfig {
  const main = config.containers?.find(({ name }) => name === 'app') ?? config.containers?.[0]
  if (!config.containers || !main) return { ...config, image }
  const containers = config.containers.map((container) => (container === main ? { ...container, image } : container))
  return { ...config, image, containers }
}
