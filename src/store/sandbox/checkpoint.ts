import { conflict } from '../../model/errors.ts'
import { type Checkpoint, keptAutomatic, maxCheckpoints } from '../../model/sandbox/checkpoint.ts'
import type { Query, Tx } from '../db.ts'

const columns = `sandbox_id as "sandboxId", id, is_auto as "isAuto", comment, source_id as "sourceId", restores, state, failure,
  created_at as "createdAt"`

/** The restorable checkpoints, newest first. */
export async function listCheckpoints(db: Query, sandboxId: string): Promise<Checkpoint[]> {
  const { rows } = await db.query<Checkpoint>({
    name: 'list-checkpoints',
    text: `select ${columns} from checkpoint where sandbox_id = $1 and state = 'ready' order by number desc`,
    values: [sandboxId],
  })
  return rows
}

/** Finds the checkpoint in any state. */
export async function findCheckpoint(db: Query, sandboxId: string, id: string): Promise<Checkpoint | undefined> {
  const { rows } = await db.query<Checkpoint>({
    name: 'find-checkpoint',
    text: `select ${columns} from checkpoint where sandbox_id = $1 and id = $2`,
    values: [sandboxId, id],
  })
  return rows[0]
}

/** The checkpoints that the reconciler has to create or remove; at most one is being created. */
export async function listUnfinished(db: Query, sandboxId: string): Promise<Checkpoint[]> {
  const { rows } = await db.query<Checkpoint>({
    name: 'list-unfinished-checkpoints',
    text: `select ${columns} from checkpoint where sandbox_id = $1 and state in ('making', 'removing') order by number`,
    values: [sandboxId],
  })
  return rows
}

/** Takes the next number. The row of the sandbox must be locked. */
export async function insertCheckpoint(tx: Tx, sandboxId: string, comment: string): Promise<Checkpoint> {
  await refuseSecond(tx, sandboxId)
  await requireRoom(tx, sandboxId)
  const { rows } = await tx.query<Checkpoint>(
    `with numbered as (
       update sandbox set checkpoints = checkpoints + 1 where id = $1 returning checkpoints, source_id)
     insert into checkpoint (sandbox_id, id, is_auto, comment, source_id, state)
     select $1, 'v' || checkpoints, false, $2, source_id, 'making' from numbered
     returning ${columns}`,
    [sandboxId, comment],
  )
  return rows[0]!
}

/**
 * Records a restore: the automatic checkpoint that will hold the current filesystem names the checkpoint to restore. The
 * row of the sandbox must be locked.
 */
export async function insertRestore(tx: Tx, sandboxId: string, from: string): Promise<Checkpoint> {
  await refuseSecond(tx, sandboxId)
  await tx.query(
    `update checkpoint set state = 'removing' where sandbox_id = $1 and state = 'ready' and is_auto and id <> $2
       and number not in (select number from checkpoint where sandbox_id = $1 and state = 'ready' and is_auto
         order by number desc limit ${keptAutomatic - 1})`,
    [sandboxId, from],
  )
  const { rows } = await tx.query<Checkpoint>(
    `with numbered as (
       update sandbox set automatic_checkpoints = automatic_checkpoints + 1 where id = $1
       returning automatic_checkpoints, source_id)
     insert into checkpoint (sandbox_id, id, is_auto, comment, source_id, restores, state)
     select $1, 'auto-' || automatic_checkpoints, true, 'before the restore of ' || $2, source_id, $2, 'making'
     from numbered
     returning ${columns}`,
    [sandboxId, from],
  )
  return rows[0]!
}

async function refuseSecond(tx: Tx, sandboxId: string): Promise<void> {
  await tx.query(`delete from checkpoint where sandbox_id = $1 and state = 'failed'`, [sandboxId])
  const { rows } = await tx.query(`select 1 from checkpoint where sandbox_id = $1 and state = 'making'`, [sandboxId])
  if (rows.length > 0) throw conflict('a checkpoint or a restore is in progress; try again when it has finished')
}

/** Automatic checkpoints do not count. */
async function requireRoom(tx: Tx, sandboxId: string): Promise<void> {
  const { rows } = await tx.query<{ count: number }>(
    'select count(*) from checkpoint where sandbox_id = $1 and not is_auto',
    [sandboxId],
  )
  if (rows[0]!.count >= maxCheckpoints) throw conflict(`there are ${maxCheckpoints} checkpoints; delete some first`)
}

export async function setCheckpointReady(tx: Tx, { sandboxId, id }: Checkpoint): Promise<void> {
  await tx.query(
    `update checkpoint set state = 'ready', created_at = now() where sandbox_id = $1 and id = $2 and state = 'making'`,
    [sandboxId, id],
  )
}

/** The replaced filesystem is stored as this checkpoint, and the current one was restored from `from`. */
export async function setRestored(tx: Tx, checkpoint: Checkpoint, from: string): Promise<void> {
  await setCheckpointReady(tx, checkpoint)
  await tx.query('update sandbox set source_id = $2, held_until = null, updated_at = now() where id = $1', [
    checkpoint.sandboxId,
    from,
  ])
}

/** The failed row is kept until the next checkpoint, for callers that wait for it. */
export async function setCheckpointFailed(tx: Tx, { sandboxId, id }: Checkpoint, failure: string): Promise<void> {
  await tx.query(
    `update checkpoint set state = 'failed', failure = $3 where sandbox_id = $1 and id = $2 and state = 'making'`,
    [sandboxId, id, failure],
  )
}

/** Hides the checkpoint, which the reconciler then deletes. Returns false when there is none. */
export async function setCheckpointRemoving(tx: Tx, sandboxId: string, id: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    `update checkpoint set state = 'removing' where sandbox_id = $1 and id = $2 and state = 'ready'`,
    [sandboxId, id],
  )
  return rowCount === 1
}

export async function forgetCheckpoints(tx: Tx, removed: Checkpoint[]): Promise<void> {
  for (const { sandboxId, id } of removed) {
    await tx.query('delete from checkpoint where sandbox_id = $1 and id = $2', [sandboxId, id])
  }
}
