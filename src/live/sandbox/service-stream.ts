// The events that callers get while a service starts, runs and stops.
import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import { serviceLogFiles } from '../../model/sandbox/inner-paths.ts'
import { startOrder } from '../../model/sandbox/service.ts'
import { stateOf } from '../../model/sandbox/service-state.ts'
import { ServiceOutput } from './service-output.ts'
import { type Change, type ServiceEvent, type ServiceEventStream, serviceEvent, type Watched } from './service-task.ts'

/** The delay between polls grows from the first to the last value while nothing happens. */
const firstPollMs = 1
const lastPollMs = 30
/** Callers learn whether the service started even if they asked for less output than that takes. */
const minStartMs = 10_000
/** The minimum is shorter for a service that waits for its dependencies. */
const minDependentStartMs = 1_000

interface StartOptions {
  /** The time for which the caller gets the output. */
  durationMs: number
  stopFirst: boolean
  /** True when the caller gets events about the stop as well. */
  tellsStop: boolean
}

/** The task calls back when the former process has ended. */
export function streamStart(
  change: Change,
  options: StartOptions,
  start: (onDown: () => void) => Promise<void>,
): ServiceEventStream {
  const { driver, box, service } = change
  const log = driver.openLog(box.id, service.name).fromNow()
  const stopped = Promise.withResolvers<void>()
  const task = watchTask(start(stopped.resolve), stopped.resolve)
  return (send, gone) =>
    streamAndComplete(new ServiceOutput(log, send, gone), change, async (output) => {
      if (options.stopFirst) {
        await forwardStop(change, output, { stopped: stopped.promise, isTold: options.tellsStop, wasUp: true })
      }
      const minMs = service.needs.length > 0 ? minDependentStartMs : minStartMs
      const startDeadline = performance.now() + Math.max(options.durationMs, minMs)
      if (!(await waitForStart(change, output, task, startDeadline))) return
      await forwardRun(change, output, performance.now() + options.durationMs)
    })
}

export function streamStop(change: Change, stop: () => Promise<void>): ServiceEventStream {
  const { driver, box, service } = change
  const log = driver.openLog(box.id, service.name).fromNow()
  const wasUp = driver.inspectService(box.id, service).is === 'up'
  const promise = stop()
  const task = watchTask(promise)
  const stopped = promise.catch(() => undefined)
  return (send, gone) =>
    streamAndComplete(new ServiceOutput(log, send, gone), change, async (output) => {
      await forwardStop(change, output, { stopped, isTold: true, wasUp })
      if (task.error) await send([serviceEvent('error', { data: task.error })])
    })
}

/** Sends the output that is kept, and then new output for some time. */
export function streamLog(watched: Watched, lines: number | undefined, followMs: number): ServiceEventStream {
  const { driver, box, service } = watched
  return async (send, gone) => {
    const log = await driver.openLog(box.id, service.name).fromBefore(lines)
    const deadline = performance.now() + followMs
    await streamAndComplete(new ServiceOutput(log, send, gone), watched, async (output) => {
      await output.forwardUntil(Date.now())
      for (let pollMs = firstPollMs; performance.now() < deadline && !gone.aborted; pollMs = nextPoll(pollMs)) {
        if ((await output.forward()).length > 0) pollMs = firstPollMs
        await pause(pollMs, deadline)
      }
    })
  }
}

/** The progress of a task that continues when the client has gone. */
interface Task {
  isDone: boolean
  error: string | undefined
}

function watchTask(promise: Promise<unknown>, onEnd: () => void = () => undefined): Task {
  const task: Task = { isDone: false, error: undefined }
  promise.then(
    () => {
      task.isDone = true
      onEnd()
    },
    (error: Error) => {
      task.isDone = true
      task.error = error.message
      onEnd()
    },
  )
  return task
}

async function streamAndComplete(
  output: ServiceOutput,
  { service }: Watched,
  stream: (output: ServiceOutput) => Promise<void>,
): Promise<void> {
  try {
    await stream(output)
    await output.send([serviceEvent('complete', { log_files: serviceLogFiles(service.name) })])
  } finally {
    output.close()
  }
}

/** Waits until the service has stopped, and for its last output if it was up. */
async function forwardStop(
  watched: Watched,
  output: ServiceOutput,
  { stopped, isTold, wasUp }: { stopped: Promise<void>; isTold: boolean; wasUp: boolean },
): Promise<void> {
  let isStopped = false
  stopped.then(() => {
    isStopped = true
  })
  if (isTold) await output.send([serviceEvent('stopping')])
  const run = output.run({ isMuted: !isTold })
  for (let pollMs = firstPollMs; !isStopped && !output.gone.aborted; pollMs = nextPoll(pollMs)) {
    await run.forward()
    await Promise.race([sleep(pollMs), stopped])
  }
  const code = await (wasUp ? run.finish(watched) : run.finish(watched, 0))
  if (isTold) await output.send([serviceEvent('stopped', { exit_code: code })])
}

/** Returns false when the program of the service was not started. */
async function waitForStart(change: Change, output: ServiceOutput, task: Task, deadline: number): Promise<boolean> {
  for (let pollMs = firstPollMs; !output.gone.aborted; pollMs = nextPoll(pollMs)) {
    const result = checkStart(change, task, performance.now() > deadline)
    if (result) {
      if (result.events.length > 0) await output.send(result.events)
      return result.isStarted
    }
    await sleep(pollMs)
  }
  return false
}

interface StartResult {
  isStarted: boolean
  events: ServiceEvent[]
}

const started = (): StartResult => ({ isStarted: true, events: [serviceEvent('started')] })

const failed = (message: string, ...more: ServiceEvent[]): StartResult => ({
  isStarted: false,
  events: [serviceEvent('error', { data: message }), ...more],
})

/** Undefined while the service is starting. */
function checkStart(change: Change, task: Task, isLate: boolean): StartResult | undefined {
  const { driver, box, service } = change
  const found = task.isDone ? driver.inspectService(box.id, service) : undefined
  if (found?.is === 'up' && found.begunAtMs !== undefined) return started()
  if (task.error) return failed(task.error)
  if (found && found.is !== 'up' && found.is !== 'absent' && found.end) {
    const { code, problem } = found.end
    return problem === undefined ? started() : failed(problem, serviceEvent('exit', { exit_code: code }))
  }
  const dependency = found && findFailedDependency(change, isLate)
  if (dependency) return failed(`failed to start dependency ${dependency}`)
  return isLate ? { isStarted: false, events: [] } : undefined
}

/** A service that this one needs and that has failed; when it is late, also one that is not ready. */
function findFailedDependency({ driver, box, services, service }: Change, isLate: boolean): string | undefined {
  const needs = startOrder(service.name, services).filter((one) => one !== service)
  return needs.find((need) => {
    const { status } = stateOf(need, driver.inspectService(box.id, need), true)
    return status === 'failed' || (isLate && status !== 'running')
  })?.name
}

/** Sends the output of the service until the deadline or until it exits. */
async function forwardRun(watched: Watched, output: ServiceOutput, deadline: number): Promise<void> {
  const { driver, box, service } = watched
  const first = driver.inspectService(box.id, service)
  const pid = first.is === 'up' ? first.pid : undefined
  const run = output.run()
  for (let pollMs = firstPollMs; !output.gone.aborted; pollMs = nextPoll(pollMs)) {
    const now = driver.inspectService(box.id, service)
    // If it exited and was restarted before the first inspection, only the log shows that.
    if (now.is !== 'up' || now.pid !== pid || run.hasEnded) {
      const code = await run.finish(watched)
      await output.send([serviceEvent('exit', { exit_code: code })])
      return
    }
    if ((await run.forward()) > 0) pollMs = firstPollMs
    if (performance.now() >= deadline && !run.hasEnded) return
    await pause(pollMs, deadline)
  }
}

/** Yields to other work even when there is nothing to wait for. */
async function pause(pollMs: number, deadline: number): Promise<void> {
  const leftMs = deadline - performance.now()
  if (pollMs <= firstPollMs || leftMs <= 0) await setImmediate()
  else await sleep(Math.min(pollMs, leftMs))
}

function nextPoll(pollMs: number): number {
  return Math.min(pollMs * 1.3, lastPollMs)
}
