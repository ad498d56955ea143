// Long calls of steps. They go on while the step answers "not yet", and a later look takes the result: a stalled
// registry or a program that does not want to stop must not keep the loop from everything else.

interface Call {
  promise: Promise<unknown>
  hasEnded: boolean
}

export type Underway<T> = { is: 'running' } | { is: 'done'; value: T }

/** By what makes the calls, so that tests and processes have their own. */
const calls = new WeakMap<object, Map<string, Call>>()

/** What nobody asks after any more, because the resource has gone on meanwhile. */
const keepMs = 300_000

/**
 * Starts the call under a name unless it is under way, and waits for it a moment. Throws what it throws. Once it has
 * ended without anybody waiting `onEnd` is called, and the next one to ask is told the result, once.
 */
export async function underway<T>(
  owner: object,
  name: string,
  start: () => Promise<T>,
  { patienceMs, onEnd }: { patienceMs: number; onEnd: () => void },
): Promise<Underway<T>> {
  const known = calls.get(owner) ?? new Map<string, Call>()
  calls.set(owner, known)
  const call = known.get(name) ?? begin(known, name, start)
  const isDone = await withinMoment(call, patienceMs)
  if (!isDone) {
    call.promise.then(onEnd, onEnd)
    return { is: 'running' }
  }
  known.delete(name)
  return { is: 'done', value: (await call.promise) as T }
}

function begin(known: Map<string, Call>, name: string, start: () => Promise<unknown>): Call {
  const call: Call = { promise: start(), hasEnded: false }
  known.set(name, call)
  const end = () => {
    call.hasEnded = true
    setTimeout(() => known.get(name) === call && known.delete(name), keepMs).unref()
  }
  call.promise.then(end, end)
  return call
}

async function withinMoment(call: Call, patienceMs: number): Promise<boolean> {
  if (call.hasEnded) return true
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), patienceMs)
  })
  const ended = call.promise.then(
    () => true,
    () => true,
  )
  const isDone = await Promise.race([ended, late])
  clearTimeout(timer)
  return isDone
}
