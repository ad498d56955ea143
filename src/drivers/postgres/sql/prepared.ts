// A transaction that is prepared outlives its session and keeps its locks, also in what is restored. Nobody but its
// owner and a superuser can end it.
import { BerthError } from '../../../model/errors.ts'
import { superuser } from '../template.ts'
import { quoteIdentifier, quoteLiteral } from './quote.ts'
import type { Asker } from './role.ts'

/** Rolls back whatever is prepared. */
export async function endPrepared(postgres: Asker, id: string): Promise<void> {
  await rollBack(postgres, id, 'true')
}

// A prepared transaction has no process, and what it holds goes by the same number as the lock on itself.
const holds = (lock: string) => `exists (
  select from pg_locks itself join pg_locks held using (virtualtransaction)
  where itself.transactionid = transaction and itself.pid is null and held.pid is null and ${lock})`
const changesRole = holds(`held.relation = 'pg_authid'::regclass and held.mode = 'RowExclusiveLock'`)

/** Rolls back changes of roles, such as a new password that its user never committed: no other change gets past them. */
export async function endPreparedRoleChanges(postgres: Asker, id: string): Promise<void> {
  await rollBack(postgres, id, changesRole)
}

/** Rolls back what a user prepared and what concerns him, so that he can be changed or dropped. */
export async function endPreparedOf(postgres: Asker, id: string, user: string): Promise<void> {
  const role = `(select oid from pg_authid where rolname = $1)`
  const concerns = holds(`held.classid = 'pg_authid'::regclass and held.objid = ${role}`)
  await rollBack(postgres, id, `owner = $1 or ${changesRole} or ${concerns}`, [user])
}

async function rollBack(postgres: Asker, id: string, which: string, values?: unknown[]): Promise<void> {
  const prepared = await postgres.query<{ gid: string; database: string; open: boolean }>(
    id,
    superuser,
    `select gid, database, datallowconn as open from pg_prepared_xacts join pg_database on datname = database
     where ${which}`,
    values,
  )
  for (const { gid, database, open } of prepared) {
    const end = () => rollBackOne(postgres, id, database, gid)
    await (open ? end() : whileOpen(postgres, id, database, end))
  }
}

// Where a transaction was prepared is the only place where it can be ended. Its owner may have been faster.
async function rollBackOne(postgres: Asker, id: string, database: string, gid: string): Promise<void> {
  try {
    await postgres.query(id, database, `ROLLBACK PREPARED ${quoteLiteral(gid)}`)
  } catch (err) {
    if (!(err instanceof BerthError && err.code === 'not_found')) throw err
  }
}

/** For a moment lets somebody into a database that its owner closed to everybody. */
async function whileOpen(postgres: Asker, id: string, database: string, work: () => Promise<void>): Promise<void> {
  const allow = (open: boolean) =>
    postgres.query(id, superuser, `ALTER DATABASE ${quoteIdentifier(database)} ALLOW_CONNECTIONS ${open}`)
  await allow(true)
  try {
    await work()
  } finally {
    await allow(false)
  }
}
