import type { Ip, IpPool, IpType } from '../../model/app/ip.ts'
import { serviceAddress } from '../../model/network.ts'
import type { Query, Tx } from '../db.ts'
import { ensureNetwork } from './network.ts'

const columns = `host(ip.ip) as ip, ip.type, ip.region, ip.shared, ip.service_name as "serviceName",
  ip.created_at as "createdAt", (
    select json_build_object('name', network.name, 'org', json_build_object(
      'id', org.id, 'numericId', org.numeric_id, 'slug', org.slug, 'name', org.name))
    from network join org on org.id = network.org_id where network.number = ip.network_number) as network`

/** Oldest first. */
export async function listIps(db: Query, appId: string): Promise<Ip[]> {
  const { rows } = await db.query<Ip>({
    name: 'list-ips',
    text: `select ${columns} from ip where app_id = $1 order by created_at, ip`,
    values: [appId],
  })
  return rows
}

export interface NewIp {
  appId: string
  type: IpType
  region: string
  serviceName: string | null
}

/** Locks the app against deletion until the transaction ends. Returns false when it is gone. */
export async function lockAppForShare(tx: Tx, appId: string): Promise<boolean> {
  const { rowCount } = await tx.query(`select 1 from app where id = $1 and state = 'active' for share`, [appId])
  return rowCount === 1
}

/** Allocates a dedicated address. Undefined when the pools are exhausted. */
export async function allocateDedicatedIp(tx: Tx, pools: IpPool[], asked: NewIp): Promise<Ip | undefined> {
  await lockAllocation(tx)
  const ip = await findFree(tx, pools)
  return ip === undefined ? undefined : insertIp(tx, ip, asked, false, null)
}

/** Assigns the shared address. Undefined when the pools are exhausted, null when the app already has it. */
export async function assignSharedIp(tx: Tx, pools: IpPool[], asked: NewIp): Promise<Ip | null | undefined> {
  await lockAllocation(tx)
  const ip = (await findShared(tx, pools)) ?? (await findFree(tx, pools))
  if (ip === undefined) return undefined
  const { rowCount } = await tx.query('select 1 from ip where app_id = $1 and ip = $2', [asked.appId, ip])
  return rowCount === 0 ? insertIp(tx, ip, asked, true, null) : null
}

/** Allocates an address that is reachable from one private network only. */
export async function allocatePrivateIp(
  tx: Tx,
  homeNumber: number,
  from: { orgId: string; network: string },
  asked: NewIp,
): Promise<Ip> {
  const network = await ensureNetwork(tx, from)
  const { rows } = await tx.query<{ services: number }>(
    'update network set services = services + 1 where number = $1 returning services',
    [network],
  )
  return insertIp(tx, serviceAddress(homeNumber, network, rows[0]!.services), asked, false, network)
}

/** Returns false when the app does not have the address. */
export async function releaseIp(db: Query, appId: string, ip: string): Promise<boolean> {
  const { rowCount } = await db.query('delete from ip where app_id = $1 and ip = $2::inet', [appId, ip])
  return rowCount === 1
}

/** Keeps only the addresses that were released last: an IPv6 pool has so many that one tenant could fill the table. */
export async function trimReleasedIps(db: Query, keep: number): Promise<void> {
  await db.query(
    `delete from released_ip where ip = any(array(
       select ip from released_ip order by released_at desc, ip offset $1 limit 10000))`,
    [keep],
  )
}

async function insertIp(tx: Tx, ip: string, asked: NewIp, shared: boolean, network: number | null): Promise<Ip> {
  const { rows } = await tx.query<Ip>(
    `insert into ip (app_id, ip, type, region, shared, network_number, service_name)
     values ($1, $2, $3, $4, $5, $6, $7) returning ${columns}`,
    [asked.appId, ip, asked.type, asked.region, shared, network, asked.serviceName],
  )
  return rows[0]!
}

/** The key of an advisory lock; no other lock may use the same number. */
const allocationLock = 0x6970

/** Serializes allocations, because two concurrent ones would find the same free address. */
async function lockAllocation(tx: Tx): Promise<void> {
  await tx.query('select pg_advisory_xact_lock($1)', [allocationLock])
}

async function findShared(tx: Tx, pools: IpPool[]): Promise<string | undefined> {
  for (const { first, last } of pools) {
    const { rows } = await tx.query<{ ip: string }>(
      'select host(ip) as ip from ip where shared and ip between $1::inet and $2::inet order by created_at limit 1',
      [first, last],
    )
    if (rows[0]) return rows[0].ip
  }
  return undefined
}

/** An address that was never allocated, or else the one that was released first. */
async function findFree(tx: Tx, pools: IpPool[]): Promise<string | undefined> {
  for (const find of [findNext, findGap, findReleased]) {
    for (const pool of pools) {
      const ip = await find(tx, pool)
      if (ip !== undefined) return ip
    }
  }
  return undefined
}

const given = `(select ip from ip union all select ip from released_ip) given`

async function findNext(tx: Tx, { first, last }: IpPool): Promise<string | undefined> {
  return one(
    tx,
    `select coalesce(max(ip) + 1, $1::inet) as ip from ${given} where ip between $1::inet and $2::inet
     having coalesce(max(ip) < $2::inet, true)`,
    [first, last],
  )
}

/** Gaps exist after the pools were reconfigured. */
async function findGap(tx: Tx, { first, last }: IpPool): Promise<string | undefined> {
  return one(
    tx,
    `select min(ip) as ip from (select $1::inet as ip union all select ip + 1 from ${given} where ip between $1::inet and $2::inet) near
     where ip between $1::inet and $2::inet and not exists (select 1 from ${given} where given.ip = near.ip)
     having min(ip) is not null`,
    [first, last],
  )
}

async function findReleased(tx: Tx, { first, last }: IpPool): Promise<string | undefined> {
  return one(tx, 'select ip from released_ip where ip between $1::inet and $2::inet order by released_at, ip limit 1', [
    first,
    last,
  ])
}

async function one(tx: Tx, text: string, values: string[]): Promise<string | undefined> {
  const { rows } = await tx.query<{ ip: string }>(`select host(ip) as ip from (${text}) found`, values)
  return rows[0]?.ip
}
