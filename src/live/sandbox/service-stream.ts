// What callers read while a service starts, runs and stops.
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { innerPaths } from '../../drivers/box/paths.ts'
import type { LogItem, LogReader, LogStream } from '../../drivers/box/service/log.ts'
import { startOrder } from '../../model/sandbox/service.ts'
import { stateOf } from '../../model/sandbox/service-state.ts'
import { type Change, inTurn, type Say, type ServiceEvent, type Telling } from './service-task.ts'

/** Between two looks: few at first, because most things happen at once, and rare when nothing happens. */
const firstLookMs = 1
const laterLookMs = 30
/** Whoever wants to hear it for less still hears whether it was started, unless it waits for others. */
const leastBeginMs = 10_000
const leastWaitMs = 1_000
/** What was printed just before the end arrives within this time, also where everybody is busy. */
const lastWordsMs = 3_000

/** A listener and the log it is read to. */
interface Listener {
  say: Say
  gone: AbortSignal
  log: LogReader
  /** Read while the end of one life was waited for, and printed by the next. */
  ahead: LogItem[]
}

interface StartOptions {
  /** How long the listener hears what it prints. */
  durationMs: number
  stopFirst: boolean
  /** The stop is part of the story. */
  tellsStop: boolean
}

export function streamStart(change: Change, options: StartOptions, start: (change: Change) => Promise<void>): Telling {
  const { driver, box, service } = change
  const log = driver.openLog(box.id, service.name).fromNow()
  const stopped = Promise.withResolvers<void>()
  const task = inTurn(box.id, service.name, async () => {
    if (options.stopFirst) await driver.stopService(box, service.name, { stay: false })
    stopped.resolve()
    await start(change)
  })
  const story = watchTask(task, stopped.resolve)
  return (say, gone) =>
    listen({ say, gone, log, ahead: [] }, change, async (listener) => {
      const stop = { tells: options.tellsStop, speaks: true }
      if (options.stopFirst) await hearStop(change, listener, stopped.promise, stop)
      const leastMs = service.needs.length > 0 ? leastWaitMs : leastBeginMs
      const soon = performance.now() + Math.max(options.durationMs, leastMs)
      if (!(await hearBegin(change, listener, story, soon))) return
      await streamOutput(change, listener, performance.now() + options.durationMs)
    })
}

export function streamStop(change: Change, timeoutMs: number): Telling {
  const { driver, box, service } = change
  const log = driver.openLog(box.id, service.name).fromNow()
  const speaks = driver.inspectService(box.id, service).is === 'up'
  const task = inTurn(box.id, service.name, () => driver.stopService(box, service.name, { timeoutMs, stay: true }))
  const story = watchTask(task, () => undefined)
  return (say, gone) =>
    listen({ say, gone, log, ahead: [] }, change, async (listener) => {
      await hearStop(
        change,
        listener,
        task.catch(() => undefined),
        { tells: true, speaks },
      )
      if (story.error) await say([event('error', { data: story.error })])
    })
}

/** What is kept, and then for a time what comes. */
export function streamLog(
  change: Pick<Change, 'driver' | 'box' | 'service'>,
  lines: number | undefined,
  followMs: number,
): Telling {
  const { driver, box, service } = change
  return async (say, gone) => {
    const log = await driver.openLog(box.id, service.name).fromBefore(lines)
    const deadline = performance.now() + followMs
    await listen({ say, gone, log, ahead: [] }, change, async (listener) => {
      await hearUntil(listener, Date.now())
      for (let look = firstLookMs; performance.now() < deadline && !gone.aborted; look = later(look)) {
        if ((await hear(listener)).length > 0) look = firstLookMs
        await pause(look, deadline)
      }
    })
  }
}

interface Story {
  done: boolean
  error: string | undefined
}

function watchTask(task: Promise<unknown>, failed: () => void): Story {
  const story: Story = { done: false, error: undefined }
  task.then(
    () => {
      story.done = true
    },
    (error: Error) => {
      story.done = true
      story.error = error.message
      failed()
    },
  )
  return story
}

async function listen(
  listener: Listener,
  { service }: Pick<Change, 'service'>,
  story: (listener: Listener) => Promise<void>,
): Promise<void> {
  try {
    await story(listener)
    const directory = `${innerPaths.log}/${service.name}`
    const files = { stdout: `${directory}/stdout/current`, stderr: `${directory}/stderr/current`, combined: directory }
    await listener.say([event('complete', { log_files: files })])
  } finally {
    listener.log.close()
  }
}

/** Until it is stopped, and its last words are heard if it ran. */
async function hearStop(
  change: Change,
  listener: Listener,
  stopped: Promise<void>,
  { tells, speaks }: { tells: boolean; speaks: boolean },
): Promise<void> {
  const { say, gone } = listener
  const deaf = { ...listener, say: async () => {} }
  let isStopped = false
  stopped.then(() => {
    isStopped = true
  })
  if (tells) await say([event('stopping')])
  const ends: Ends = new Map()
  for (let look = firstLookMs; !isStopped && !gone.aborted; look = later(look)) {
    await hearUntilEnd(tells ? listener : deaf, ends)
    await Promise.race([sleep(look), stopped])
  }
  const code = await lastWords(change, tells ? listener : deaf, ends, speaks ? lastWordsMs : 0)
  if (tells) await say([event('stopped', { exit_code: code })])
}

/** False when its program was not started. */
async function hearBegin(change: Change, listener: Listener, story: Story, deadline: number): Promise<boolean> {
  const { driver, box, service } = change
  const { say, gone } = listener
  for (let look = 1; !gone.aborted; look = later(look)) {
    const found = story.done ? driver.inspectService(box.id, service) : undefined
    if (found?.is === 'up' && found.begunAtMs !== undefined) {
      await say([event('started')])
      return true
    }
    if (story.error) await say([event('error', { data: story.error })])
    if (story.error) return false
    if (found && found.is !== 'up' && found.is !== 'absent' && found.end) {
      if (found.end.problem === undefined) {
        await say([event('started')])
        return true
      }
      await say([event('error', { data: found.end.problem }), event('exit', { exit_code: found.end.code })])
      return false
    }
    const late = performance.now() > deadline
    const dependency = found && findBroken(change, late)
    if (dependency) await say([event('error', { data: `failed to start dependency ${dependency}` })])
    if (dependency || late) return false
    await sleep(look)
  }
  return false
}

/** What it needs and has ended; when time is over, also what is not ready. */
function findBroken({ driver, box, services, service }: Change, late: boolean): string | undefined {
  const needs = startOrder(service.name, services).filter((one) => one !== service)
  return needs.find((need) => {
    const { status } = stateOf(need, driver.inspectService(box.id, need), true)
    return status === 'failed' || (late && status !== 'running')
  })?.name
}

/** What it prints, until time is over or it ends. */
async function streamOutput({ driver, box, service }: Change, listener: Listener, deadline: number): Promise<void> {
  const first = driver.inspectService(box.id, service)
  const pid = first.is === 'up' ? first.pid : undefined
  const ends: Ends = new Map()
  for (let look = firstLookMs; !listener.gone.aborted; look = later(look)) {
    const now = driver.inspectService(box.id, service)
    // It may have ended, and be back by now, before it was looked at for the first time; its log says so.
    if (now.is !== 'up' || now.pid !== pid || ends.size === 2) {
      const code = await lastWords({ driver, box, service }, listener, ends)
      await listener.say([event('exit', { exit_code: code })])
      return
    }
    if ((await hearUntilEnd(listener, ends)) > 0) look = firstLookMs
    if (performance.now() >= deadline && ends.size < 2) return
    await pause(look, deadline)
  }
}

/** With which code each stream said that the process ended. */
type Ends = Map<LogStream, number>

async function lastWords(
  { driver, box, service }: Pick<Change, 'driver' | 'box' | 'service'>,
  listener: Listener,
  ends: Ends,
  withinMs = lastWordsMs,
): Promise<number> {
  const until = performance.now() + withinMs
  while (ends.size < 2 && !listener.gone.aborted && performance.now() < until) {
    if ((await hearUntilEnd(listener, ends)) === 0) await sleep(5)
  }
  const found = driver.inspectService(box.id, service)
  const [said] = ends.values()
  return said ?? ((found.is === 'down' || found.is === 'ending') && found.end ? found.end.code : 0)
}

async function hear({ say, log }: Listener): Promise<LogItem[]> {
  const items = await log.read()
  await say(items.flatMap(eventsOf))
  return items
}

/** What was printed before this time. A service may print as fast as it is read, so that an end is never come to. */
async function hearUntil(listener: Listener, timeMs: number): Promise<void> {
  while (!listener.gone.aborted) {
    const items = await hear(listener)
    if (items.length === 0 || items.some((item) => item.is === 'line' && item.timeMs > timeMs)) return
    await setImmediate()
  }
}

/** With nothing to wait for, others still get their turn. */
async function pause(lookMs: number, deadline: number): Promise<void> {
  const leftMs = deadline - performance.now()
  if (lookMs <= firstLookMs || leftMs <= 0) await setImmediate()
  else await sleep(Math.min(lookMs, leftMs))
}

/** What a stream says after the end of the process belongs to the next life. */
async function hearUntilEnd(listener: Listener, ends: Ends): Promise<number> {
  const items = [...listener.ahead.splice(0), ...(await listener.log.read())]
  const events: ServiceEvent[] = []
  for (const item of items) {
    if (ends.has(item.stream)) listener.ahead.push(item)
    else if (item.is === 'end') ends.set(item.stream, item.code)
    else events.push(...eventsOf(item))
  }
  await listener.say(events)
  return items.length - listener.ahead.length
}

function eventsOf(item: LogItem): ServiceEvent[] {
  if (item.is === 'end') return []
  if (item.is === 'line') return [{ type: item.stream, timestamp: Math.trunc(item.timeMs), data: `${item.text}\n` }]
  return [event('gap', { data: `${item.stream} was printed faster than it could be read; some of it is left out` })]
}

function event(type: ServiceEvent['type'], more: Partial<ServiceEvent> = {}): ServiceEvent {
  return { type, timestamp: Date.now(), ...more }
}

function later(look: number): number {
  return Math.min(look * 1.3, laterLookMs)
}
