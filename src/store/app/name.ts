// The DNS names in private networks.
import type { Query } from '../db.ts'

export interface NamedMachine {
  id: string
  networkNumber: number
  slot: number
  region: string
  isStarted: boolean
  /** False when its config disables DNS registration. */
  isListed: boolean
  group: string
  metadata: Record<string, string>
}

export interface NamedApp {
  id: string
  name: string
  /** Null until the network has its first machine or address. */
  networkNumber: number | null
  machines: NamedMachine[]
  /** Its service addresses, and the network from which each is reachable. */
  services: { address: string; networkNumber: number | null }[]
}

/** All apps, or the existing ones among `ids`. */
export async function listNames(db: Query, ids: string[] | null): Promise<NamedApp[]> {
  const { rows } = await db.query<NamedApp>({
    name: ids ? 'some-names' : 'all-names',
    text: `select app.id, app.name, network.number as "networkNumber",
             coalesce(machines.list, '[]') as machines, coalesce(services.list, '[]') as services
           from app
           left join network on network.org_id = app.org_id and network.name = app.network
           left join lateral (
             select json_agg(json_build_object(
               'id', id, 'networkNumber', network_number, 'slot', slot, 'region', region, 'isStarted', state = 'started',
               'isListed', listed,
               'group', coalesce(metadata ->> 'fly_process_group', metadata ->> 'process_group', ''),
               'metadata', metadata) order by id) as list
             from machine_route where app_id = app.id and slot is not null) machines on true
           left join lateral (
             select json_agg(json_build_object('address', host(ip), 'networkNumber', coalesce(network_number, network.number))
               order by ip) as list
             from ip where app_id = app.id and type = 'private_v6') services on true
           where app.state = 'active' ${ids ? 'and app.id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}
