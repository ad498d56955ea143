// The edge's view of apps. It caches the rows in memory, so that routing needs no query and works without the database.

import type { CheckResult, MachineState } from '../../model/app/machine.ts'
import type { MachineConfig, MachineService } from '../../model/app/machine-config.ts'
import type { Query, Tx } from '../db.ts'
import { lockMachine } from './machine.ts'
import { launchMachine } from './machine-command.ts'

/** The routing data of an app with an address or a machine. */
export interface AppRouteRow {
  id: string
  name: string
  orgId: string
  network: string
  /** Whether its organization allows replays across private networks. */
  crossNetworkReplays: boolean
  enableSubdomains: boolean
  ips: { ip: string; shared: boolean; type: string }[]
  hosts: string[]
  certificates: StoredCertificate[]
  machines: MachineRouteRow[]
}

export interface StoredCertificate {
  hostname: string
  source: 'custom' | 'authority'
  fullchain: string
  /** Encrypted, as base64. */
  privateKey: string
}

export interface MachineRouteRow {
  id: string
  instanceId: string
  state: MachineState
  region: string
  slot: number
  cordoned: boolean
  autostarts: boolean
  services: MachineService[]
  /** The checks of the machine itself, without those of its services. */
  checks: MachineConfig['checks'] | null
  /** The latest check results by check name. */
  statuses: Record<string, CheckResult['status']> | null
}

/** All routable apps, or the routable ones among `ids`. */
export async function listAppRoutes(db: Query, ids: string[] | null): Promise<AppRouteRow[]> {
  const { rows } = await db.query<AppRouteRow>({
    name: ids ? 'some-app-routes' : 'all-app-routes',
    text: `select app.id, app.name, app.org_id as "orgId", app.network, app.enable_subdomains as "enableSubdomains",
             (select cross_network_replays from org where id = app.org_id) as "crossNetworkReplays",
             coalesce(ips, '[]') as ips, coalesce(machines, '[]') as machines, coalesce(hosts, '[]') as hosts,
             coalesce(certificates, '[]') as certificates
           from (select app_id from ip union select app_id from machine_route where slot is not null) reachable
             join app on app.id = reachable.app_id,
             lateral (select json_agg(json_build_object('ip', host(ip), 'shared', shared, 'type', type)) as ips
               from ip where app_id = app.id) ips,
             lateral (select json_agg(hostname) as hosts from host where app_id = app.id) hosts,
             lateral (select json_agg(json_build_object('hostname', hostname, 'source', source, 'fullchain', fullchain,
                 'privateKey', encode(private_key, 'base64')) order by source desc) as certificates
               from certificate where app_id = app.id) certificates,
             lateral (select json_agg(json_build_object('id', id, 'instanceId', instance_id, 'state', machine_route.state,
                 'region', region, 'slot', slot, 'cordoned', cordoned, 'services', services, 'autostarts', autostarts,
                 'checks', checks,
                 'statuses', (select json_object_agg(name, status) from machine_check
                   where machine_id = machine_route.id)) order by id) as machines
               from machine_route where app_id = app.id and slot is not null) machines
           where app.state = 'active' ${ids ? 'and reachable.app_id = any($1)' : ''}`,
    values: ids ? [ids] : [],
  })
  return rows
}

/** Starts the machine for a request, if its state and its owner allow that. */
export async function wakeMachine(tx: Tx, id: string): Promise<void> {
  const machine = await lockMachine(tx, id)
  if (machine?.state !== 'stopped' && machine?.state !== 'suspended') return
  const { services = [], standbys = [], disable_machine_autostart: isOff = false } = machine.config
  if (!machine.cordoned && standbys.length === 0 && services.some(({ autostart }) => autostart ?? !isOff)) {
    await launchMachine(tx, machine, 'start', 'proxy')
  }
}
