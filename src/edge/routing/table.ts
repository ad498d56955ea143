import type { AppRoute } from './app.ts'
import { AppTable } from './app-table.ts'
import { DatabaseTable } from './database.ts'
import type { SandboxRoute } from './sandbox.ts'

/** All routes. Sandboxes are indexed by host name for requests and by id for updates. */
export class RouteTable {
  /** False until the first load, when a missing host name does not mean that it does not exist. */
  isFilled = false
  private readonly byHost = new Map<string, SandboxRoute>()
  private readonly byId = new Map<string, SandboxRoute>()
  readonly apps: AppTable
  readonly databases = new DatabaseTable()

  constructor(domain = '') {
    this.apps = new AppTable(domain)
  }

  find(host: string): SandboxRoute | AppRoute | undefined {
    return this.byHost.get(host) ?? this.apps.find(host)
  }

  findSandbox(host: string): SandboxRoute | undefined {
    return this.byHost.get(host)
  }

  get size(): number {
    return this.byId.size + this.apps.size
  }

  /** True if the target that pooled connections with this key belong to still exists. */
  hasKey(key: string): boolean {
    return this.byId.get(key.slice(0, key.indexOf(' ')))?.key === key || this.apps.hasKey(key)
  }

  /** Replaces all sandboxes. */
  fill(routes: SandboxRoute[]): void {
    const kept = new Set(routes.map(({ id }) => id))
    this.change(
      [...this.byId.keys()].filter((id) => !kept.has(id)),
      routes,
    )
    this.isFilled = true
  }

  /** Replaces the sandboxes with these ids; those missing from `routes` are removed. */
  change(ids: string[], routes: SandboxRoute[]): void {
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
