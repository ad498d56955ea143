/**
 * Runs the work of each key once at a time. Whoever asks for it meanwhile waits for the same, and may stop waiting; it
 * is stopped when nobody waits any more.
 */
export function sharing<T>() {
  interface Job {
    result: Promise<T>
    stop: AbortController
    listeners: Set<(progress: number) => void>
  }
  const jobs = new Map<string, Job>()

  function start(key: string, work: (signal: AbortSignal, tell: (progress: number) => void) => Promise<T>): Job {
    const stop = new AbortController()
    const listeners = new Set<(progress: number) => void>()
    const result = work(stop.signal, (progress) => {
      for (const listener of listeners) listener(progress)
    }).finally(() => {
      if (jobs.get(key) === job) jobs.delete(key)
    })
    // Those who wait are told; there may be none.
    result.catch(() => undefined)
    const job = { result, stop, listeners }
    jobs.set(key, job)
    return job
  }

  return async function share(
    key: string,
    work: (signal: AbortSignal, tell: (progress: number) => void) => Promise<T>,
    listener: (progress: number) => void,
    signal: AbortSignal,
  ): Promise<T> {
    signal.throwIfAborted()
    const job = jobs.get(key) ?? start(key, work)
    const { promise: left, reject } = Promise.withResolvers<never>()
    const leave = () => reject(signal.reason)
    // Each its own, because two may come with the same.
    const own = (progress: number) => listener(progress)
    job.listeners.add(own)
    signal.addEventListener('abort', leave, { once: true })
    try {
      return await Promise.race([job.result, left])
    } finally {
      signal.removeEventListener('abort', leave)
      job.listeners.delete(own)
      if (job.listeners.size === 0) {
        if (jobs.get(key) === job) jobs.delete(key)
        job.stop.abort(new Error('nobody waits any more'))
      }
    }
  }
}
