import type { Query } from '../db.ts'

export interface RunningSandbox {
  id: string
  name: string
  slot: number
}

/** Those that run, or those of `ids` that do; however many there were, no more than there are slots. */
export async function listRunning(db: Query, ids: string[] | null): Promise<RunningSandbox[]> {
  const { rows } = await db.query<RunningSandbox>({
    name: ids ? 'some-running' : 'all-running',
    text: `select id, name, slot from sandbox
           where state = 'running' and slot is not null ${ids ? 'and id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}
