import type { Identity } from '../../model/app/identity.ts'
import type { Db } from '../db.ts'

/** The identity of the machine with this slot in this private network. */
export async function findIdentity(
  db: Pick<Db, 'read'>,
  networkNumber: number,
  slot: number,
): Promise<Identity | undefined> {
  const [row] = await db.read<Identity>({
    name: 'find-identity',
    text: `select org.id as org_id, org.slug as org_name, app.id as app_id, app.name as app_name,
             machine.id as machine_id, machine.name as machine_name, machine.instance_id as machine_version,
             machine.region, machine.config ->> 'image' as image, coalesce(machine.image ->> 'digest', '') as image_digest
           from machine join app on app.id = machine.app_id join org on org.id = app.org_id
           where machine.slot = $2 and machine.network_number = $1`,
    values: [networkNumber, slot],
  })
  return row
}
