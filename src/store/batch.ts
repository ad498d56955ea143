/** Answers all items, in their order, with one statement. Calls are grouped by the identity of this function. */
export type Batch<C, I, R> = (connection: C, items: I[]) => Promise<R[]>

const maxBatchSize = 256

/**
 * Collects the items of concurrent callers into batches: items that arrive while a batch runs form the next one. A
 * statement for many rows costs little more than one for a single row, because most of the cost is the round trip and
 * the commit.
 */
export function openBatching<C>(connection: C): <I, R>(run: Batch<C, I, R>, item: I) => Promise<R> {
  const queues = new Map<unknown, (item: unknown) => Promise<unknown>>()
  return <I, R>(run: Batch<C, I, R>, item: I) => {
    if (!queues.has(run)) queues.set(run, batchQueue(connection, run as Batch<C, unknown, unknown>))
    return queues.get(run)!(item) as Promise<R>
  }
}

function batchQueue<C, I, R>(connection: C, run: Batch<C, I, R>): (item: I) => Promise<R> {
  let queue: { item: I; answer: PromiseWithResolvers<R> }[] = []
  let isRunning = false

  async function drain(): Promise<void> {
    isRunning = true
    while (queue.length > 0) {
      const batch = queue.slice(0, maxBatchSize)
      queue = queue.slice(maxBatchSize)
      try {
        const answers = await run(
          connection,
          batch.map(({ item }) => item),
        )
        for (const [i, { answer }] of batch.entries()) answer.resolve(answers[i]!)
      } catch (err) {
        for (const { answer } of batch) answer.reject(err)
      }
    }
    isRunning = false
  }

  return (item) => {
    const answer = Promise.withResolvers<R>()
    queue.push({ item, answer })
    if (!isRunning) drain()
    return answer.promise
  }
}

/** Assigns the rows of a batch to its items by their `position`, which counts from 1. */
export function byPosition<R extends { position: number }>(items: unknown[], rows: R[]): (R | undefined)[] {
  const found = new Map(rows.map((row) => [row.position, row]))
  return items.map((_, index) => found.get(index + 1))
}
