// A prepared transaction outlives its session and keeps its locks, even in a restored copy. Only its owner and
// superusers can end it.
import { BerthError } from '../../../model/errors.ts'
import { whileOpen } from './database.ts'
import type { SqlClient } from './driver.ts'
import { superuser } from './platform-role.ts'
import { quoteLiteral } from './quote.ts'

export async function rollBackPrepared(client: SqlClient, id: string): Promise<void> {
  await rollBack(client, id, 'true')
}

// A prepared transaction has no pid; the lock on its own id and its other locks share a virtual transaction id.
const holdsLock = (lock: string) => `exists (
  select from pg_locks itself join pg_locks held using (virtualtransaction)
  where itself.transactionid = transaction and itself.pid is null and held.pid is null and ${lock})`
const changesRole = holdsLock(`held.relation = 'pg_authid'::regclass and held.mode = 'RowExclusiveLock'`)

/** Rolls back uncommitted changes of roles, such as a new password, because they block every other change of roles. */
export async function rollBackPreparedRoleChanges(client: SqlClient, id: string): Promise<void> {
  await rollBack(client, id, changesRole)
}

/** Rolls back what a user prepared and what holds a lock on the user, so that the user can be changed or dropped. */
export async function rollBackPreparedOf(client: SqlClient, id: string, user: string): Promise<void> {
  const role = `(select oid from pg_authid where rolname = $1)`
  const locksUser = holdsLock(`held.classid = 'pg_authid'::regclass and held.objid = ${role}`)
  await rollBack(client, id, `owner = $1 or ${changesRole} or ${locksUser}`, [user])
}

async function rollBack(client: SqlClient, id: string, condition: string, values?: unknown[]): Promise<void> {
  const prepared = await client.query<{ gid: string; database: string; open: boolean }>(
    id,
    superuser,
    `select gid, database, datallowconn as open from pg_prepared_xacts join pg_database on datname = database
     where ${condition}`,
    values,
  )
  for (const { gid, database, open } of prepared) {
    const end = () => rollBackOne(client, id, database, gid)
    await (open ? end() : whileOpen(client, id, database, end))
  }
}

// A transaction can only be ended in the database it was prepared in. Its owner may end it at the same time.
async function rollBackOne(client: SqlClient, id: string, database: string, gid: string): Promise<void> {
  try {
    await client.query(id, database, `ROLLBACK PREPARED ${quoteLiteral(gid)}`)
  } catch (err) {
    if (!(err instanceof BerthError && err.code === 'not_found')) throw err
  }
}
