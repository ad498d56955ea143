import type { KeptConfig } from '../../model/app/machine-config-check.ts'
import type { Db, Tx } from '../db.ts'
import { insertMachineEvent } from './machine-event.ts'
import { ensureNetwork } from './network.ts'

export interface NewMachine {
  id: string
  name: string
  region: string
  instanceId: string
  config: KeptConfig
  cordoned: boolean
  wanted: boolean
  secrets: Buffer | null
  secretsVersion: number
}

export type InsertedMachine =
  | { is: 'created' }
  | { is: 'app deleted' }
  | { is: 'no free slot' }
  | { is: 'name taken'; by: string }

/** The key of an advisory lock; no other lock may use the same number. */
const slotLock = 0x736c6f74

/** A conflict needs a sandbox that takes the same last slot at the same time, so a few attempts are enough. */
const maxAttempts = 5

/** Runs a transaction with `insertMachine` in it, and repeats it when a sandbox took the same slot first. */
export async function transactionWithSlot<R>(db: Db, body: (tx: Tx) => Promise<R>): Promise<R> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await db.transaction(body)
    } catch (error) {
      const { code, table } = error as { code?: string; table?: string }
      if (code !== '23505' || table !== 'box_slot' || attempt === maxAttempts) throw error
    }
  }
}

/** Takes the highest free slot, because sandboxes take the lowest. Inserts of machines run one at a time. */
export async function insertMachine(
  tx: Tx,
  app: { id: string; orgId: string; network: string },
  input: NewMachine,
): Promise<InsertedMachine> {
  const { rowCount } = await tx.query({
    name: 'hold-app',
    text: `select 1 from app where id = $1 and state = 'active' for share`,
    values: [app.id],
  })
  if (rowCount !== 1) return { is: 'app deleted' }
  await tx.query('select pg_advisory_xact_lock($1)', [slotLock])
  const taken = await findByName(tx, app.id, input.name)
  if (taken !== undefined) return { is: 'name taken', by: taken }
  const network = await ensureNetwork(tx, app)
  const { rowCount: inserted } = await tx.query({
    name: 'insert-machine',
    text: `with free as (
             select max(n) as slot from generate_series(1, 1023) n
             where not exists (select 1 from box_slot where box_slot.slot = n)),
           made as (
             insert into machine (id, app_id, name, state, region, instance_id, config, slot, network_number, wanted,
               cordoned, secrets, secrets_version)
             select $1, $2, $3, 'created', $4, $5, $6, free.slot, $7, $8, $9, $10, $11 from free
             where free.slot is not null returning id)
           insert into machine_version (machine_id, version, config) select id, $5, $6 from made`,
    values: [
      input.id,
      app.id,
      input.name,
      input.region,
      input.instanceId,
      input.config,
      network,
      input.wanted,
      input.cordoned,
      input.secrets,
      input.secretsVersion,
    ],
  })
  if (inserted !== 1) return { is: 'no free slot' }
  await insertMachineEvent(tx, input.id, { type: 'launch', status: 'created', source: 'user' })
  return { is: 'created' }
}

async function findByName(tx: Tx, appId: string, name: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ id: string }>({
    name: 'find-machine-by-name',
    text: `select id from machine where app_id = $1 and name = $2 and state <> 'destroyed'`,
    values: [appId, name],
  })
  return rows[0]?.id
}
