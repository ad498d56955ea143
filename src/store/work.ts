// The queue of resources to reconcile. It has no payload: a step reads the resource itself, so a late, repeated or lost
// wake-up never acts on stale data.
import type { Query, Tx } from './db.ts'

export interface Lease {
  kind: string
  resourceId: string
  token: string
  wakes: number
  attempts: number
  /** What the last step waits for, or why it failed. */
  note: string
  lastError: string | null
}

export const workChannel = 'work'

/** Long enough for one or two missed renewals, short enough that the work of a killed worker resumes within five seconds. */
const leaseSeconds = 4

const enqueueing = (ids: string) => `with woken as (
    insert into work (kind, resource_id) ${ids}
    on conflict (kind, resource_id) do update set run_at = now(), wakes = work.wakes + 1, attempts = 0)
  select pg_notify('${workChannel}', '')`

/** Takes a Tx, so that work is enqueued only if the change commits. */
export async function enqueue(tx: Tx, kind: string, resourceId: string): Promise<void> {
  await tx.query({ name: 'enqueue', text: enqueueing('values ($1, $2)'), values: [kind, resourceId] })
}

/** Looks at the resource after some seconds, or earlier if it is due. A step that runs now is followed by another. */
export async function enqueueLater(tx: Tx, kind: string, resourceId: string, seconds: number): Promise<void> {
  await tx.query({
    name: 'enqueue-later',
    text: `insert into work (kind, resource_id, run_at) values ($1, $2, now() + interval '1 second' * $3)
           on conflict (kind, resource_id) do update set run_at = least(work.run_at, excluded.run_at),
             wakes = work.wakes + 1, attempts = 0`,
    values: [kind, resourceId, seconds],
  })
}

/** Enqueues in a fixed order, so that concurrent calls do not deadlock. */
export async function enqueueAll(tx: Tx, kind: string, resourceIds: string[]): Promise<void> {
  const ids = 'select $1, id from unnest($2::text[]) id order by id'
  await tx.query({ name: 'enqueue-all', text: enqueueing(ids), values: [kind, resourceIds] })
}

/**
 * The longest delay after workers that died or were too slow to renew their leases. It keeps a step that kills its worker from
 * doing so all the time.
 */
const maxDelaySeconds = 60

/**
 * Leases the most overdue resources. The retry delay is written here, before the step runs, so nothing has to be cleaned
 * up after a worker that dies. The commit does not wait for the disk, because losing a lease in a crash is harmless.
 */
export async function leaseDue(db: Query, limit: number): Promise<Lease[]> {
  const { rows } = await db.query<Lease>({
    name: 'lease-due',
    text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true)),
           due as (
             select kind, resource_id from work, asynchronous
             where run_at <= now() and (leased_until is null or leased_until < now())
             order by run_at limit $1
             for update of work skip locked)
           update work set
             token = gen_random_uuid(),
             leased_until = now() + interval '1 second' * $2,
             attempts = attempts + 1,
             run_at = now() + interval '1 second' * least(power(2, least(attempts, 9)), $3::float8)
           from due where work.kind = due.kind and work.resource_id = due.resource_id
           returning work.kind, work.resource_id as "resourceId", work.token, work.wakes, work.attempts, work.note,
             work.last_error as "lastError"`,
    values: [limit, leaseSeconds, maxDelaySeconds],
  })
  return rows
}

/** Seconds until the next resource is due, at most `maxSeconds`. */
export async function secondsToNext(db: Query, maxSeconds: number): Promise<number> {
  const { rows } = await db.query<{ seconds: number }>({
    name: 'seconds-to-next',
    text: `select extract(epoch from min(greatest(run_at, leased_until)) - now())::float8 as seconds from (
             select run_at, leased_until from work order by run_at limit 100) soonest`,
    values: [],
  })
  return Math.min(maxSeconds, Math.max(0, rows[0]?.seconds ?? maxSeconds))
}

/**
 * Renews the leases of running steps and returns those that are still held. Each lease is renewed by its own statement,
 * because one that locks several rows could deadlock with other transactions that do.
 */
export async function renewLeases(db: Query, tokens: string[]): Promise<string[]> {
  const ours: string[] = []
  for (const token of tokens) {
    const { rowCount } = await db.query({
      name: 'renew-lease',
      text: `with asynchronous as materialized (select set_config('synchronous_commit', 'off', true))
             update work set leased_until = now() + interval '1 second' * $2 from asynchronous where token = $1`,
      values: [token, leaseSeconds],
    })
    if (rowCount === 1) ours.push(token)
  }
  return ours
}

/** Schedules the next step after `seconds`, or immediately if the resource was woken meanwhile. The note is shown to the user. */
export async function release(tx: Query, lease: Lease, seconds: number, note = ''): Promise<void> {
  await tx.query({
    name: 'release-work',
    text: `update work set token = null, leased_until = null, attempts = 0, last_error = null, note = $4,
             run_at = case when wakes = $2 then now() + interval '1 second' * $3 else now() end
           where token = $1`,
    values: [lease.token, lease.wakes, seconds, note],
  })
}

/** Removes the resource from the queue until it is enqueued again. */
export async function removeWork(tx: Tx, lease: Lease): Promise<void> {
  const { rowCount } = await tx.query({
    name: 'forget-work',
    text: `delete from work where token = $1 and wakes = $2`,
    values: [lease.token, lease.wakes],
  })
  if (rowCount === 0) await release(tx, lease, 0)
}

/** Retries later and later, but at least every `maxSeconds`. */
export async function releaseAfterError(db: Query, lease: Lease, message: string, maxSeconds: number): Promise<void> {
  await db.query(
    `update work set token = null, leased_until = null, last_error = $2,
       run_at = now() + interval '1 second' * least(power(2, least(attempts - 1, 9)), $3::float8) where token = $1`,
    [lease.token, message, maxSeconds],
  )
}

/** Whether this worker still holds the lease, so that its result counts. */
export async function holdsLease(tx: Tx, lease: Lease): Promise<boolean> {
  const { rowCount } = await tx.query({
    name: 'holds-lease',
    text: `select 1 from work where kind = $2 and resource_id = $3 and token = $1 for update`,
    values: [lease.token, lease.kind, lease.resourceId],
  })
  return rowCount === 1
}
