import type { Machine } from '../../model/app/machine.ts'
import type { AppPolicy } from '../../model/app/network-policy.ts'
import type { Db, Tx } from '../db.ts'
import { enqueueAll } from '../work.ts'

export interface PolicyList {
  /** Incremented by every change. */
  version: number
  policies: AppPolicy[]
}

/** The policies of an existing app, oldest first. */
export async function listPolicies(db: Pick<Db, 'read'>, appId: string): Promise<PolicyList> {
  const rows = await db.read<AppPolicy & { version: number }>({
    name: 'list-network-policies',
    // One statement reads both, so that the version matches the policies.
    text: `select app.policies_version as version, found.* from app left join lateral (
             select id, name, selector, rules, created_at from network_policy where app_id = app.id) found on true
           where app.id = $1 order by found.created_at, found.id`,
    values: [appId],
  })
  const policies = rows.filter(({ id }) => id !== null)
  return {
    version: rows[0]?.version ?? 0,
    policies: policies.map(({ id, name, selector, rules }) => ({ id, name, selector, rules })),
  }
}

/** Increments the version of an app's policies, and locks them until the transaction ends. */
export async function nextPoliciesVersion(tx: Tx, appId: string): Promise<number | undefined> {
  const { rows } = await tx.query<{ version: number }>({
    name: 'next-policies-version',
    text: `update app set policies_version = policies_version + 1 where id = $1 and state = 'active'
           returning policies_version as version`,
    values: [appId],
  })
  return rows[0]?.version
}

export async function insertPolicy(tx: Tx, appId: string, policy: AppPolicy): Promise<void> {
  await tx.query(`insert into network_policy (app_id, id, name, selector, rules) values ($1, $2, $3, $4, $5)`, [
    appId,
    policy.id,
    policy.name,
    policy.selector,
    JSON.stringify(policy.rules),
  ])
}

/** Returns false when there is none with this id. */
export async function replacePolicy(tx: Tx, appId: string, policy: AppPolicy): Promise<boolean> {
  const { rowCount } = await tx.query(
    `update network_policy set name = $3, selector = $4, rules = $5 where app_id = $1 and id = $2`,
    [appId, policy.id, policy.name, policy.selector, JSON.stringify(policy.rules)],
  )
  return rowCount === 1
}

/** Returns false when there is none with this id. */
export async function removePolicy(tx: Tx, appId: string, id: string): Promise<boolean> {
  const { rowCount } = await tx.query('delete from network_policy where app_id = $1 and id = $2', [appId, id])
  return rowCount === 1
}

export async function countPolicies(tx: Tx, appId: string): Promise<number> {
  const { rows } = await tx.query<{ count: number }>('select count(*) as count from network_policy where app_id = $1', [
    appId,
  ])
  return rows[0]!.count
}

/** The ids that are not machines of the app. */
export async function listForeignMachines(tx: Tx, appId: string, ids: string[]): Promise<string[]> {
  const { rows } = await tx.query<{ id: string }>(
    `select id from machine where id = any($2) and app_id = $1 and state <> 'destroyed'`,
    [appId, ids],
  )
  const known = new Set(rows.map(({ id }) => id))
  return ids.filter((id) => !known.has(id))
}

/** Makes the reconciler apply the current policies to running machines. Others get them when they start. */
export async function enqueuePolicyChange(tx: Tx, appId: string): Promise<void> {
  const { rows } = await tx.query<{ id: string }>(`select id from machine where app_id = $1 and state = 'started'`, [
    appId,
  ])
  const ids = rows.map(({ id }) => id)
  if (ids.length > 0) await enqueueAll(tx, 'machine', ids)
}

/** Records that this version of the policies is applied, unless a change of metadata may select others by now. */
export async function recordAppliedPolicies(
  tx: Tx,
  { id, config }: Pick<Machine, 'id' | 'config'>,
  version: number,
): Promise<void> {
  await tx.query({
    name: 'note-held-machine',
    text: `update machine set policies_version = $2 where id = $1 and coalesce(config -> 'metadata', '{}') = $3`,
    values: [id, version, config.metadata ?? {}],
  })
}

/** A running machine to which this version is not applied yet. */
export async function findMachineWithOldPolicies(
  db: Pick<Db, 'read'>,
  appId: string,
  version: number,
): Promise<string | undefined> {
  const rows = await db.read<{ id: string }>({
    name: 'find-unheld-machine',
    text: `select id from machine where app_id = $1 and state = 'started' and policies_version < $2 limit 1`,
    values: [appId, version],
  })
  return rows[0]?.id
}
