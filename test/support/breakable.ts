import type { Db, Tx } from '../../src/store/db.ts'

/**
 * Wraps a database so that the nth statement runs and then throws, as if its reply had been lost. `begin` and `commit`
 * count as statements: a commit whose reply is lost has taken effect.
 */
export function breakable(db: Db, nth: number): { db: Db; count(): number } {
  let calls = 0

  async function counted<R>(answer: Promise<R>): Promise<R> {
    const result = await answer
    calls++
    if (calls === nth) throw new Error(`the reply of call ${nth} was lost`)
    return result
  }

  const query = (target: { query: Db['query'] }) =>
    ((...args: Parameters<Db['query']>) => counted(target.query(...args) as unknown as Promise<unknown>)) as Db['query']

  return {
    db: {
      query: query(db),
      read: (statement) => counted(db.read(statement)),
      batch: (run, item) => counted(db.batch(run, item)),
      transaction: <R>(body: (tx: Tx) => Promise<R>) =>
        counted(db.transaction((tx) => body({ query: query(tx), inTransaction: true }))),
    },
    count: () => calls,
  }
}
