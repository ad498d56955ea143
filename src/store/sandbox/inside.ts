import type { Query } from '../db.ts'

export interface RunningSandbox {
  id: string
  name: string
  slot: number
}

/** The running sandboxes, or the running ones among `ids`. */
export async function listRunning(db: Query, ids: string[] | null): Promise<RunningSandbox[]> {
  const { rows } = await db.query<RunningSandbox>({
    name: ids ? 'some-running' : 'all-running',
    text: `select id, name, slot from sandbox
           where state = 'running' and slot is not null ${ids ? 'and id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}
