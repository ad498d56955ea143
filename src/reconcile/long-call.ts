// Lets calls of steps run for longer than a step may take. The step returns "not yet" and a later step takes the result,
// so a stalled registry or a program that ignores its stop signal does not block the loop.

interface Call {
  promise: Promise<unknown>
  hasEnded: boolean
}

export type LongCall<T> = { is: 'running' } | { is: 'done'; value: T }

/** Keyed by the driver that makes the calls, so that several worlds in one process do not share them. */
const calls = new WeakMap<object, Map<string, Call>>()

/** Results that no step takes are dropped after this time: the resource has changed its state meanwhile. */
const resultLifetimeMs = 300_000

/**
 * Starts the call unless one with this name is running, and waits for it for `patienceMs`. Throws what the call throws.
 * When it ends later, `onEnd` is called, and the next caller gets the result, once.
 */
export async function runLongCall<T>(
  owner: object,
  name: string,
  start: () => Promise<T>,
  { patienceMs, onEnd }: { patienceMs: number; onEnd: () => void },
): Promise<LongCall<T>> {
  const ownCalls = calls.get(owner) ?? new Map<string, Call>()
  calls.set(owner, ownCalls)
  const call = ownCalls.get(name) ?? begin(ownCalls, name, start)
  if (!(await endsWithin(call, patienceMs))) {
    call.promise.then(onEnd, onEnd)
    return { is: 'running' }
  }
  ownCalls.delete(name)
  return { is: 'done', value: (await call.promise) as T }
}

function begin(ownCalls: Map<string, Call>, name: string, start: () => Promise<unknown>): Call {
  const call: Call = { promise: start(), hasEnded: false }
  ownCalls.set(name, call)
  const end = () => {
    call.hasEnded = true
    setTimeout(() => ownCalls.get(name) === call && ownCalls.delete(name), resultLifetimeMs).unref()
  }
  call.promise.then(end, end)
  return call
}

async function endsWithin(call: Call, patienceMs: number): Promise<boolean> {
  if (call.hasEnded) return true
  let timer: NodeJS.Timeout | undefined
  const timeout = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), patienceMs)
  })
  const ended = call.promise.then(
    () => true,
    () => true,
  )
  const isDone = await Promise.race([ended, timeout])
  clearTimeout(timer)
  return isDone
}
