/** Where the requests of one host name go. */
export interface Route {
  /** What it leads to, as notifications and work rows name it. */
  kind: 'sandbox'
  id: string
  host: string
  /** Null: everybody. Else tokens that may see this. */
  access: { orgId: string; sandbox: string } | null
  /** Null when nothing there can be reached. */
  address: string | null
  /**
   * The address to connect from, where that tells whether the target is there: the addresses of boxes that do not run
   * lead out of the machine, to whoever answers.
   */
  from: string | undefined
  port: number
  /** Tells connections that may be used for this route from others. */
  key: string
  /** It has to be started first. */
  isCold: boolean
  /** What is known to answer there. */
  service: RouteService | undefined
}

export interface RouteService {
  name: string
  /** False: somebody stopped it, and it stays so. */
  wanted: boolean
  /** Where it says whether it is ready; null when that is not asked over HTTP. */
  health: { path: string; port: number } | null
}

/** The routes by host name, and by what they lead to, because that is what changes are told of. */
export class RouteTable {
  /** False until it has been filled once: then a host that is not in it is not known to be absent. */
  isFilled = false
  private readonly byHost = new Map<string, Route>()
  private readonly byId = new Map<string, Route>()

  find(host: string): Route | undefined {
    return this.byHost.get(host)
  }

  get size(): number {
    return this.byId.size
  }

  /** Whether connections of this key are for a route that still exists. */
  hasKey(key: string): boolean {
    return this.byId.get(key.slice(0, key.indexOf(' ')))?.key === key
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
