// The known UDP clients. UDP has no end of a connection and source addresses can be forged, so the number of flows is
// limited: the one that was silent for the longest is removed first.

export interface TableFlow {
  readonly appId: string
  /** Unique within the app. */
  readonly key: string
  /** The client has sent something after a response, so its address is not forged. Such flows are removed last. */
  isProven: boolean
  /** Ends the flow, which also removes it from the table. */
  end(): void
}

/** The flows of one app, in the order of their last activity. */
interface AppFlows<Flow> {
  fresh: Map<string, Flow>
  proven: Map<string, Flow>
}

export class FlowTable<Flow extends TableFlow> {
  private readonly byApp = new Map<string, AppFlows<Flow>>()
  private readonly maxFlows: number
  private readonly maxFlowsPerApp: number
  private count = 0

  constructor(maxFlows: number) {
    this.maxFlows = maxFlows
    // Traffic for one app cannot use up the table.
    this.maxFlowsPerApp = Math.ceil(maxFlows / 2)
  }

  get size(): number {
    return this.count
  }

  find(appId: string, key: string): Flow | undefined {
    const flows = this.byApp.get(appId)
    return flows?.proven.get(key) ?? flows?.fresh.get(key)
  }

  *all(): Iterable<Flow> {
    for (const { fresh, proven } of this.byApp.values()) {
      yield* fresh.values()
      yield* proven.values()
    }
  }

  /** Ends a flow of the same app if that has too many, or of the app with the most flows if the table is full. */
  add(flow: Flow): void {
    const known = this.byApp.get(flow.appId)
    if (known && sizeOf(known) >= this.maxFlowsPerApp) oldestOf(known).end()
    else if (this.count >= this.maxFlows) oldestOf(this.largest()).end()
    const flows = this.byApp.get(flow.appId) ?? { fresh: new Map(), proven: new Map() }
    this.byApp.set(flow.appId, flows)
    flows.fresh.set(flow.key, flow)
    this.count += 1
  }

  /** Records activity of a flow. */
  touch(flow: Flow): void {
    const flows = this.byApp.get(flow.appId)
    if (!flows || !(flows.fresh.delete(flow.key) || flows.proven.delete(flow.key))) return
    const list = flow.isProven ? flows.proven : flows.fresh
    list.set(flow.key, flow)
  }

  remove(flow: Flow): void {
    const flows = this.byApp.get(flow.appId)
    if (!flows || !(flows.fresh.delete(flow.key) || flows.proven.delete(flow.key))) return
    this.count -= 1
    if (sizeOf(flows) === 0) this.byApp.delete(flow.appId)
  }

  private largest(): AppFlows<Flow> {
    return [...this.byApp.values()].reduce((largest, flows) => (sizeOf(flows) > sizeOf(largest) ? flows : largest))
  }
}

function sizeOf({ fresh, proven }: AppFlows<unknown>): number {
  return fresh.size + proven.size
}

function oldestOf<Flow>({ fresh, proven }: AppFlows<Flow>): Flow {
  return (fresh.size > 0 ? fresh : proven).values().next().value!
}
