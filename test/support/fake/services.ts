import type { BoxServices, LogItem, LogReader } from '../../../src/drivers/box/service/driver.ts'
import { definitionText, type Service } from '../../../src/model/sandbox/service.ts'
import type { ServiceProcess } from '../../../src/model/sandbox/service-state.ts'

export interface FakeService {
  process: ServiceProcess
  /** The result of a start. Without an exit code the service keeps running; `isBack` means that it was restarted. */
  life?: { lines?: string[]; code?: number; problem?: string; isBack?: boolean }
  log: LogItem[]
  /** The definition and revision that it was last started with. */
  definition?: string
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
    ensureService: async (box, { name, service: row }, onDown) => {
      if (!row) return void services().delete(`${box.id}/${name}`)
      const service = at(box.id, name)
      const mustEnd = !row.wanted || service.definition !== definitionOf(row)
      if (mustEnd && service.process.is !== 'absent') stop(service)
      onDown?.()
      service.definition = definitionOf(row)
      if (row.wanted && !obeys(row, service)) start(service)
    },
    isSettled: (box, row) => obeys(row, at(box.id, row.name)) && at(box.id, row.name).definition === definitionOf(row),
    isCurrent: (boxId, row) => at(boxId, row.name).definition === definitionOf(row),
    isDiskFull: () => false,
    setOrder: () => undefined,
    hurryService: (boxId, name) => start(at(boxId, name)),
    signalService: async (box, name) => at(box.id, name).process.is === 'up',
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

const definitionOf = (row: Service) => `${row.revision} ${definitionText(row)}`

const obeys = (row: Service, { process }: FakeService) =>
  process.is === 'absent' ? !row.wanted : process.wanted === row.wanted

function stop(service: FakeService): void {
  service.process = {
    is: 'down',
    wanted: false,
    sinceMs: Date.now(),
    end: { code: 143, problem: undefined },
    restarts: 0,
    nextRestartAtMs: undefined,
  }
  for (const stream of ['stdout', 'stderr'] as const) service.log.push({ is: 'end', stream, code: 143 })
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
