import type { Task } from '../../model/sandbox/task.ts'
import type { Query, Tx } from '../db.ts'

const columns = `name, started_at as "startedAt", expires_at as "expiresAt"`

/** By name. */
export async function listTasks(db: Query, sandboxId: string): Promise<Task[]> {
  const { rows } = await db.query<Task>({
    name: 'list-tasks',
    text: `select ${columns} from task where sandbox_id = $1 and expires_at > now() order by name`,
    values: [sandboxId],
  })
  return rows
}

/** Creates or extends a task. The row of the sandbox must be locked. */
export async function putTask(tx: Tx, sandboxId: string, name: string, durationMs: number): Promise<Task> {
  const { rows } = await tx.query<Task>(
    `insert into task (sandbox_id, name, expires_at) values ($1, $2, now() + interval '1 millisecond' * $3)
     on conflict (sandbox_id, name) do update set expires_at = excluded.expires_at
     returning ${columns}`,
    [sandboxId, name, durationMs],
  )
  return rows[0]!
}

export async function removeExpiredTasks(tx: Tx, sandboxId: string): Promise<void> {
  await tx.query('delete from task where sandbox_id = $1 and expires_at <= now()', [sandboxId])
}

/** False when there is none. */
export async function removeTask(db: Query, sandboxId: string, name: string): Promise<boolean> {
  const { rows } = await db.query<{ live: boolean }>(
    'delete from task where sandbox_id = $1 and name = $2 returning expires_at > now() as live',
    [sandboxId, name],
  )
  return rows[0]?.live ?? false
}
