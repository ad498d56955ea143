// The clients that send datagrams, as far as they are known. Nobody says when they have gone, and addresses of senders can
// be forged, so there are never more than a number of them: those go first who were silent for the longest.

export interface Listed {
  readonly appId: string
  /** Tells it from others of the app. */
  readonly key: string
  /** The client has sent something after an answer, so the address is its own. It stays when others have to go. */
  isProven: boolean
  /** Takes itself out of the table. */
  end(): void
}

/** Of one app, in the order in which they were last heard of. */
interface Flows<Flow> {
  fresh: Map<string, Flow>
  proven: Map<string, Flow>
}

export class FlowTable<Flow extends Listed> {
  private readonly byApp = new Map<string, Flows<Flow>>()
  private readonly most: number
  private readonly mostOfApp: number
  private count = 0

  constructor(most: number) {
    this.most = most
    // What is sent to one app does not take everything from the others.
    this.mostOfApp = Math.ceil(most / 2)
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

  /** One of the same app goes when that has too many, and one of the app that has most when there are too many in all. */
  add(flow: Flow): void {
    const known = this.byApp.get(flow.appId)
    if (known && sizeOf(known) >= this.mostOfApp) oldestOf(known).end()
    else if (this.count >= this.most) oldestOf(this.largest()).end()
    const flows = this.byApp.get(flow.appId) ?? { fresh: new Map(), proven: new Map() }
    this.byApp.set(flow.appId, flows)
    flows.fresh.set(flow.key, flow)
    this.count += 1
  }

  /** It was heard of. */
  touch(flow: Flow): void {
    const flows = this.byApp.get(flow.appId)
    if (!flows || !(flows.fresh.delete(flow.key) || flows.proven.delete(flow.key))) return
    const place = flow.isProven ? flows.proven : flows.fresh
    place.set(flow.key, flow)
  }

  remove(flow: Flow): void {
    const flows = this.byApp.get(flow.appId)
    if (!flows || !(flows.fresh.delete(flow.key) || flows.proven.delete(flow.key))) return
    this.count -= 1
    if (sizeOf(flows) === 0) this.byApp.delete(flow.appId)
  }

  private largest(): Flows<Flow> {
    return [...this.byApp.values()].reduce((most, flows) => (sizeOf(flows) > sizeOf(most) ? flows : most))
  }
}

function sizeOf({ fresh, proven }: Flows<unknown>): number {
  return fresh.size + proven.size
}

function oldestOf<Flow>({ fresh, proven }: Flows<Flow>): Flow {
  return (fresh.size > 0 ? fresh : proven).values().next().value!
}
