type Work<T> = (signal: AbortSignal, report: (progress: number) => void) => Promise<T>

/**
 * Runs the work of each key once at a time. Callers with the same key share the result and the progress. A caller can
 * stop waiting; the work is aborted when the last caller does.
 */
export function sharedWork<T>() {
  interface Job {
    result: Promise<T>
    abort: AbortController
    listeners: Set<(progress: number) => void>
  }
  const jobs = new Map<string, Job>()

  function start(key: string, work: Work<T>): Job {
    const abort = new AbortController()
    const listeners = new Set<(progress: number) => void>()
    const result = work(abort.signal, (progress) => {
      for (const listener of listeners) listener(progress)
    }).finally(() => {
      if (jobs.get(key) === job) jobs.delete(key)
    })
    // Callers see the error; this prevents an unhandled rejection when all of them have left.
    result.catch(() => undefined)
    const job = { result, abort, listeners }
    jobs.set(key, job)
    return job
  }

  return async function share(
    key: string,
    work: Work<T>,
    listener: (progress: number) => void,
    signal: AbortSignal,
  ): Promise<T> {
    signal.throwIfAborted()
    const job = jobs.get(key) ?? start(key, work)
    const { promise: left, reject } = Promise.withResolvers<never>()
    const leave = () => reject(signal.reason)
    // A new function per caller, because two callers may pass the same listener.
    const ownListener = (progress: number) => listener(progress)
    job.listeners.add(ownListener)
    signal.addEventListener('abort', leave, { once: true })
    try {
      return await Promise.race([job.result, left])
    } finally {
      signal.removeEventListener('abort', leave)
      job.listeners.delete(ownListener)
      if (job.listeners.size === 0) {
        if (jobs.get(key) === job) jobs.delete(key)
        job.abort.abort(new Error('no caller is waiting'))
      }
    }
  }
}
