import type { Query } from '../db.ts'

export interface MachineSlot {
  id: string
  slot: number
  networkNumber: number
}

const runningStates = `('starting', 'started', 'restarting', 'replacing', 'stopping', 'suspending', 'suspended')`

/** Machines with a network namespace, all or those of `ids`. */
export async function listRunningMachines(db: Query, ids: string[] | null): Promise<MachineSlot[]> {
  const { rows } = await db.query<MachineSlot>({
    name: ids ? 'some-running-machines' : 'all-running-machines',
    text: `select id, slot, network_number as "networkNumber" from machine
           where slot is not null and state in ${runningStates} ${ids ? 'and id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}

/** Finds the machine with this slot in this private network. */
export async function findMachineBySlot(
  db: Query,
  networkNumber: number,
  slot: number,
): Promise<{ machineId: string; appId: string; appName: string; orgId: string } | undefined> {
  const { rows } = await db.query<{ machineId: string; appId: string; appName: string; orgId: string }>({
    name: 'find-itself',
    text: `select machine.id as "machineId", app.id as "appId", app.name as "appName", app.org_id as "orgId"
           from machine join app on app.id = machine.app_id and app.state = 'active'
           where machine.slot = $2 and machine.network_number = $1`,
    values: [networkNumber, slot],
  })
  return rows[0]
}

/** Creates the token with which a machine calls the API about itself. Idempotent. */
export async function ensureMachineToken(
  db: Query,
  { machineId, appId, orgId }: { machineId: string; appId: string; orgId: string },
  hash: Buffer,
): Promise<void> {
  await db.query({
    name: 'ensure-machine-token',
    text: `insert into token (id, hash, kind, org_id, app_id, name, inside)
           select $1, $2, 'app', $3, $4, 'machine', true
           where not exists (select 1 from token where id = $1) on conflict do nothing`,
    values: [machineId, hash, orgId, appId],
  })
}
