import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import type { LogItem, LogReader, LogStream } from '../../drivers/box/service/driver.ts'
import { type SendEvents, type ServiceEvent, serviceEvent, type Watched } from './service-task.ts'

/** Output that was printed just before the end arrives in the log within this time, also on a busy host. */
const lastOutputMs = 3_000
const lastOutputPollMs = 5

/** The output of a service, read from its log and sent to one client. */
export class ServiceOutput {
  readonly gone: AbortSignal
  readonly send: SendEvents
  readonly #log: LogReader
  /** Items that were read after the end of one run and belong to the next. */
  readonly #ahead: LogItem[] = []

  constructor(log: LogReader, send: SendEvents, gone: AbortSignal) {
    this.#log = log
    this.send = send
    this.gone = gone
  }

  /** Sends what has been printed since the last call. */
  async forward(): Promise<LogItem[]> {
    const items = await this.#log.read()
    await this.send(items.flatMap(eventsOf))
    return items
  }

  /** Sends what was printed before this time. A service that prints all the time would otherwise keep it busy for ever. */
  async forwardUntil(timeMs: number): Promise<void> {
    while (!this.gone.aborted) {
      const items = await this.forward()
      if (items.length === 0 || items.some((item) => item.is === 'line' && item.timeMs > timeMs)) return
      await setImmediate()
    }
  }

  /** The output of one run. A muted run is read and not sent. */
  run({ isMuted = false } = {}): RunOutput {
    return new RunOutput(this, () => this.#read(), isMuted ? async () => {} : this.send)
  }

  async #read() {
    const items = [...this.#ahead.splice(0), ...(await this.#log.read())]
    return { items, ahead: this.#ahead }
  }

  close(): void {
    this.#log.close()
  }
}

/** The output of one run of a service, up to the end mark of each stream. */
export class RunOutput {
  readonly #output: ServiceOutput
  readonly #read: () => Promise<{ items: LogItem[]; ahead: LogItem[] }>
  readonly #send: SendEvents
  readonly #exitCodes = new Map<LogStream, number>()

  constructor(output: ServiceOutput, read: () => Promise<{ items: LogItem[]; ahead: LogItem[] }>, send: SendEvents) {
    this.#output = output
    this.#read = read
    this.#send = send
  }

  get hasEnded(): boolean {
    return this.#exitCodes.size === 2
  }

  /** Sends what the run has printed since the last call, and returns the number of items. */
  async forward(): Promise<number> {
    const { items, ahead } = await this.#read()
    const events: ServiceEvent[] = []
    for (const item of items) {
      if (this.#exitCodes.has(item.stream)) ahead.push(item)
      else if (item.is === 'end') this.#exitCodes.set(item.stream, item.code)
      else events.push(...eventsOf(item))
    }
    await this.#send(events)
    return items.length - ahead.length
  }

  /** Sends the rest of a run that has ended, and returns its exit code. */
  async finish({ driver, box, service }: Watched, withinMs = lastOutputMs): Promise<number> {
    const deadline = performance.now() + withinMs
    while (!this.hasEnded && !this.#output.gone.aborted && performance.now() < deadline) {
      if ((await this.forward()) === 0) await sleep(lastOutputPollMs)
    }
    const found = driver.inspectService(box.id, service)
    const [code] = this.#exitCodes.values()
    return code ?? ((found.is === 'down' || found.is === 'ending') && found.end ? found.end.code : 0)
  }
}

function eventsOf(item: LogItem): ServiceEvent[] {
  if (item.is === 'end') return []
  if (item.is === 'line') return [{ type: item.stream, timestamp: Math.trunc(item.timeMs), data: `${item.text}\n` }]
  return [
    serviceEvent('gap', { data: `${item.stream} was printed faster than it could be read; some of it is left out` }),
  ]
}
