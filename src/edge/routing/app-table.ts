import type { AppRoute } from './app.ts'

/** The apps by id, name, host name and address. */
export class AppTable {
  private readonly domain: string
  private readonly byId = new Map<string, AppRoute>()
  private readonly byHost = new Map<string, AppRoute>()
  private readonly byCustomHost = new Map<string, AppRoute>()
  private readonly byAddress = new Map<string, AppRoute>()
  private readonly byName = new Map<string, AppRoute>()
  /** Apps by the keys of their started targets. */
  private readonly byTargetKey = new Map<string, AppRoute>()

  constructor(domain: string) {
    this.domain = domain
  }

  get size(): number {
    return this.byId.size
  }

  get(id: string): AppRoute | undefined {
    return this.byId.get(id)
  }

  all(): Iterable<AppRoute> {
    return this.byId.values()
  }

  findName(name: string): AppRoute | undefined {
    return this.byName.get(name)
  }

  findAddress(address: string): AppRoute | undefined {
    return this.byAddress.get(address)
  }

  hasKey(key: string): boolean {
    return this.byTargetKey.has(key)
  }

  findKey(key: string): AppRoute | undefined {
    return this.byTargetKey.get(key)
  }

  find(host: string): AppRoute | undefined {
    return this.byHost.get(host) ?? this.findByWildcard(host)
  }

  private findByWildcard(host: string): AppRoute | undefined {
    if (host.endsWith(`.${this.domain}`)) {
      const rest = host.slice(0, -this.domain.length - 1)
      const app = this.byName.get(rest.slice(rest.lastIndexOf('.') + 1))
      return app?.hasSubdomains ? app : undefined
    }
    return this.byCustomHost.get(host) ?? this.byCustomHost.get(`*${host.slice(Math.max(host.indexOf('.'), 0))}`)
  }

  /** Replaces all apps. */
  fill(apps: AppRoute[]): void {
    const kept = new Set(apps.map(({ id }) => id))
    this.change(
      [...this.byId.keys()].filter((id) => !kept.has(id)),
      apps,
    )
  }

  /** Replaces the apps with these ids; those missing from `apps` are removed. */
  change(ids: string[], apps: AppRoute[]): void {
    for (const id of [...ids, ...apps.map((app) => app.id)]) this.remove(id)
    for (const app of apps) this.add(app)
  }

  private add(app: AppRoute): void {
    this.byId.set(app.id, app)
    this.byName.set(app.name, app)
    for (const host of app.hosts) this.byHost.set(host, app)
    for (const host of app.customHosts) this.byCustomHost.set(host, app)
    for (const address of app.addresses) this.byAddress.set(address, app)
    for (const target of app.targets) if (target.state === 'started') this.byTargetKey.set(target.key, app)
  }

  private remove(id: string): void {
    const old = this.byId.get(id)
    if (!old) return
    this.byId.delete(id)
    deleteOwn(this.byName, [old.name], old)
    deleteOwn(this.byHost, old.hosts, old)
    deleteOwn(this.byCustomHost, old.customHosts, old)
    deleteOwn(this.byAddress, old.addresses, old)
    deleteOwn(
      this.byTargetKey,
      old.targets.map(({ key }) => key),
      old,
    )
  }
}

/** Deletes keys unless they belong to another app by now. */
function deleteOwn(map: Map<string, AppRoute>, keys: string[], owner: AppRoute): void {
  for (const key of keys) if (map.get(key) === owner) map.delete(key)
}
