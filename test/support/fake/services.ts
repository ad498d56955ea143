import type { BoxServices, LogItem, LogReader } from '../../../src/drivers/box/service/driver.ts'
import type { ServiceProcess } from '../../../src/model/sandbox/service-state.ts'

export interface FakeService {
  process: ServiceProcess
  /** The result of a start. Without an exit code the service keeps running; `isBack` means that it was restarted. */
  life?: { lines?: string[]; code?: number; problem?: string; isBack?: boolean }
  log: LogItem[]
}

let pids = 100

/** Keeps services in memory, by `<box>/<name>`. */
export function fakeServices(services: () => Map<string, FakeService>): BoxServices {
  const at = (boxId: string, name: string): FakeService => {
    const key = `${boxId}/${name}`
    if (!services().has(key)) services().set(key, { process: { is: 'absent' }, log: [] })
    return services().get(key)!
  }
  return {
    inspectService: (boxId, { name }) => at(boxId, name).process,
    ensureDefinition: (box, { name }) => {
      at(box.id, name)
    },
    setOrder: () => undefined,
    startService: async (box, name) => start(at(box.id, name)),
    hurryService: (boxId, name) => start(at(boxId, name)),
    stopService: async (box, name) => {
      const service = at(box.id, name)
      service.process = {
        is: 'down',
        wanted: false,
        sinceMs: Date.now(),
        end: { code: 143, problem: undefined },
        restarts: 0,
        nextRestartAtMs: undefined,
      }
      for (const stream of ['stdout', 'stderr'] as const) service.log.push({ is: 'end', stream, code: 143 })
    },
    signalService: async (box, name) => at(box.id, name).process.is === 'up',
    removeService: async (box, name) => {
      services().delete(`${box.id}/${name}`)
    },
    listDefined: (boxId) =>
      [...services().keys()].filter((key) => key.startsWith(`${boxId}/`)).map((key) => key.slice(boxId.length + 1)),
    openLog: (boxId, name) => ({
      fromNow: () => readerOf(at(boxId, name), at(boxId, name).log.length),
      fromBefore: async (lines) =>
        readerOf(at(boxId, name), lines === undefined ? 0 : Math.max(0, at(boxId, name).log.length - lines)),
      fromTime: async () => readerOf(at(boxId, name), 0),
    }),
  }
}

function start(service: FakeService): void {
  const { lines = [], code, problem, isBack = false } = service.life ?? {}
  for (const text of lines) service.log.push({ is: 'line', stream: 'stdout', timeMs: Date.now(), text })
  if (code !== undefined)
    for (const stream of ['stdout', 'stderr'] as const) service.log.push({ is: 'end', stream, code })
  if (code === undefined || isBack) {
    service.process = {
      is: 'up',
      wanted: true,
      ready: true,
      pid: pids++,
      begunAtMs: Date.now(),
      restarts: 0,
      health: undefined,
    }
    return
  }
  const end = { code, problem }
  service.process = {
    is: 'ending',
    wanted: true,
    sinceMs: Date.now(),
    end,
    restarts: 1,
    nextRestartAtMs: Date.now() + 1000,
  }
}

function readerOf(service: FakeService, from: number): LogReader {
  let at = from
  return {
    read: async () => {
      const items = service.log.slice(at)
      at = service.log.length
      return items
    },
    close: () => undefined,
  }
}
