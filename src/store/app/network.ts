import type { Tx } from '../db.ts'

/** Returns the number of the private network, which is created on first use. */
export async function ensureNetwork(tx: Tx, { orgId, network }: { orgId: string; network: string }): Promise<number> {
  const { rows } = await tx.query<{ number: number }>({
    name: 'ensure-network',
    text: `with made as (
             insert into network (org_id, name) select $1, $2
             where not exists (select 1 from network where org_id = $1 and name = $2)
             on conflict do nothing returning number)
           select number from made union all select number from network where org_id = $1 and name = $2`,
    values: [orgId, network],
  })
  // Another transaction created it after this statement began, so only a new statement sees it.
  return rows[0]?.number ?? ensureNetwork(tx, { orgId, network })
}
