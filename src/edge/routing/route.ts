import { DatabaseTable } from '../tcp/database.ts'
import type { Place } from '../types.ts'
import type { AppRoute } from './app.ts'

/** Where the requests of one host name of a sandbox go. */
export interface Route extends Place {
  /** What it leads to, as notifications and work rows name it. */
  kind: 'sandbox'
  id: string
  host: string
  /** Null: everybody. Else tokens that may see this. */
  access: { orgId: string; sandbox: string; adminsOnly: boolean } | null
  /** It has to be started first. */
  isCold: boolean
  /** What is known to answer there. */
  service: RouteService | undefined
}

export interface RouteService {
  name: string
  /** False: somebody stopped it, and it stays so. */
  wanted: boolean
  /** Why it failed, if it had when the platform last looked. */
  failure: string | null
  /** Where it says whether it is ready; null when that is not asked over HTTP. */
  health: { path: string; port: number } | null
  /** Of one whose check is a command, which only the platform can run: when it last passed. Null: not in this life. */
  readyAtMs?: number | null
}

/** The routes by host name, and by what they lead to, because that is what changes are told of. */
export class RouteTable {
  /** False until it has been filled once: then a host that is not in it is not known to be absent. */
  isFilled = false
  private readonly byHost = new Map<string, Route>()
  private readonly byId = new Map<string, Route>()
  readonly apps: AppTable
  readonly databases = new DatabaseTable()

  constructor(domain = '') {
    this.apps = new AppTable(domain)
  }

  find(host: string): Route | AppRoute | undefined {
    return this.byHost.get(host) ?? this.apps.find(host)
  }

  /** Of a sandbox alone. */
  findSandbox(host: string): Route | undefined {
    return this.byHost.get(host)
  }

  get size(): number {
    return this.byId.size + this.apps.size
  }

  /** Whether connections of this key lead somewhere that still exists. */
  hasKey(key: string): boolean {
    return this.byId.get(key.slice(0, key.indexOf(' ')))?.key === key || this.apps.hasKey(key)
  }

  /** All there is. */
  fill(routes: Route[]): void {
    const kept = new Set(routes.map(({ id }) => id))
    this.change(
      [...this.byId.keys()].filter((id) => !kept.has(id)),
      routes,
    )
    this.isFilled = true
  }

  /** What `ids` lead to now. */
  change(ids: string[], routes: Route[]): void {
    for (const id of [...ids, ...routes.map((route) => route.id)]) {
      const old = this.byId.get(id)
      this.byId.delete(id)
      if (old && this.byHost.get(old.host) === old) this.byHost.delete(old.host)
    }
    for (const route of routes) {
      this.byId.set(route.id, route)
      this.byHost.set(route.host, route)
    }
  }
}

/** The same for apps, which have several names, and addresses. */
export class AppTable {
  private readonly domain: string
  private readonly byId = new Map<string, AppRoute>()
  private readonly byHost = new Map<string, AppRoute>()
  private readonly byCustomHost = new Map<string, AppRoute>()
  private readonly byAddress = new Map<string, AppRoute>()
  private readonly byName = new Map<string, AppRoute>()
  /** Keys of places that run. */
  private readonly keys = new Map<string, AppRoute>()

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
    return this.keys.has(key)
  }

  findKey(key: string): AppRoute | undefined {
    return this.keys.get(key)
  }

  find(host: string): AppRoute | undefined {
    return this.byHost.get(host) ?? this.findBelow(host)
  }

  private findBelow(host: string): AppRoute | undefined {
    if (host.endsWith(`.${this.domain}`)) {
      const rest = host.slice(0, -this.domain.length - 1)
      const app = this.byName.get(rest.slice(rest.lastIndexOf('.') + 1))
      return app?.hasSubdomains ? app : undefined
    }
    return this.byCustomHost.get(host) ?? this.byCustomHost.get(`*${host.slice(Math.max(host.indexOf('.'), 0))}`)
  }

  fill(apps: AppRoute[]): void {
    const kept = new Set(apps.map(({ id }) => id))
    this.change(
      [...this.byId.keys()].filter((id) => !kept.has(id)),
      apps,
    )
  }

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
    for (const target of app.targets) if (target.state === 'started') this.keys.set(target.key, app)
  }

  private remove(id: string): void {
    const old = this.byId.get(id)
    if (!old) return
    this.byId.delete(id)
    forget(this.byName, [old.name], old)
    forget(this.byHost, old.hosts, old)
    forget(this.byCustomHost, old.customHosts, old)
    forget(this.byAddress, old.addresses, old)
    forget(
      this.keys,
      old.targets.map(({ key }) => key),
      old,
    )
  }
}

/** Unless another one has it by now. */
function forget(map: Map<string, AppRoute>, keys: string[], old: AppRoute): void {
  for (const key of keys) if (map.get(key) === old) map.delete(key)
}
