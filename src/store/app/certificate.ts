import type { Certificate, CertificateSource, Host } from '../../model/app/certificate.ts'
import { invalid } from '../../model/errors.ts'
import { fromDatabase } from '../../model/time.ts'
import type { Query, Tx } from '../db.ts'

interface HostRow {
  hostname: string
  createdAt: Host['createdAt']
  certificates: (Omit<Certificate, 'createdAt' | 'expiresAt'> & { createdAt: string; expiresAt: string })[]
}

const columns = `host.hostname, host.created_at as "createdAt", coalesce((
    select json_agg(json_build_object('source', source, 'fullchain', fullchain, 'createdAt', created_at::text,
      'expiresAt', expires_at::text) order by source desc)
    from certificate where certificate.hostname = host.hostname), '[]') as certificates`

export interface HostPage {
  total: number
  hosts: Host[]
}

/** A page sorted by name; `filter` is a substring of the name. */
export async function listHosts(
  db: Query,
  appId: string,
  { filter, after, limit }: { filter: string; after: string; limit: number },
): Promise<HostPage> {
  const { rows } = await db.query<{ total: number; found: null } | (HostRow & { total: number; found: true })>({
    name: 'list-hosts',
    text: `select total, page.* from (
             select count(*) as total from host where app_id = $1 and strpos(hostname, $2) > 0) counted
           left join lateral (
             select true as found, ${columns} from host
             where app_id = $1 and strpos(hostname, $2) > 0 and hostname > $3 order by hostname limit $4) page on true
           order by page.hostname`,
    values: [appId, filter, after, limit],
  })
  return { total: rows[0]?.total ?? 0, hosts: rows.filter((row) => row.found).map((row) => hostOf(row as HostRow)) }
}

export async function findHost(db: Query, appId: string, hostname: string): Promise<Host | undefined> {
  const { rows } = await db.query<HostRow>({
    name: 'find-host',
    text: `select ${columns} from host where app_id = $1 and hostname = $2`,
    values: [appId, hostname],
  })
  return rows[0] && hostOf(rows[0])
}

function hostOf({ hostname, createdAt, certificates }: HostRow): Host {
  return {
    hostname,
    createdAt,
    certificates: certificates.map((each) => ({
      ...each,
      createdAt: fromDatabase(each.createdAt),
      expiresAt: fromDatabase(each.expiresAt),
    })),
  }
}

/**
 * Assigns the host name to the app, unless another app has it or the app is being deleted. Throws when it overlaps a host
 * name of another organization, as `*.example.com` and `a.example.com` do.
 */
export async function ensureHost(tx: Tx, appId: string, hostname: string): Promise<'ours' | 'taken' | 'without app'> {
  const app = await tx.query(`select 1 from app where id = $1 and state = 'active' for share`, [appId])
  if (app.rowCount !== 1) return 'without app'
  const { rows } = await refusingOverlap(
    tx.query<{ app_id: string }>({
      name: 'ensure-host',
      text: `insert into host (hostname, app_id) values ($2, $1)
           on conflict (hostname) do update set hostname = excluded.hostname returning app_id`,
      values: [appId, hostname],
    }),
  )
  return rows[0]?.app_id === appId ? 'ours' : 'taken'
}

async function refusingOverlap<R>(result: Promise<R>): Promise<R> {
  try {
    return await result
  } catch (err) {
    throw (err as { constraint?: string }).constraint === 'host_overlap' ? hostnameTaken() : err
  }
}

/** Does not say whose it is. */
export function hostnameTaken() {
  return invalid('hostname is in use by another app', { status: 'hostname_taken' })
}

export interface NewCertificate {
  source: CertificateSource
  fullchain: string
  /** Encrypted. */
  privateKey: Buffer
  expiresAt: Date
}

export async function putCertificate(tx: Tx, appId: string, hostname: string, given: NewCertificate): Promise<void> {
  await tx.query({
    name: 'put-certificate',
    text: `insert into certificate (hostname, app_id, source, fullchain, private_key, expires_at)
           values ($1, $2, $3, $4, $5, $6)
           on conflict (hostname, source) do update set fullchain = excluded.fullchain,
             private_key = excluded.private_key, expires_at = excluded.expires_at, created_at = now()`,
    values: [hostname, appId, given.source, given.fullchain, given.privateKey, given.expiresAt.toISOString()],
  })
}

/** Certificates of the platform's authority that expire within this many days, soonest first. */
export async function listExpiring(db: Query, days: number): Promise<{ hostname: string; fullchain: string }[]> {
  const { rows } = await db.query<{ hostname: string; fullchain: string }>(
    `select hostname, fullchain from certificate
     where source = 'authority' and expires_at < now() + interval '1 day' * $1 order by expires_at limit 1000`,
    [days],
  )
  return rows
}

/** Does nothing if the certificate was deleted or replaced since it was read. */
export async function renewCertificate(
  db: Query,
  { hostname, fullchain }: { hostname: string; fullchain: string },
  renewed: Omit<NewCertificate, 'source'>,
): Promise<void> {
  await db.query(
    `update certificate set fullchain = $3, private_key = $4, expires_at = $5, created_at = now()
     where hostname = $1 and source = 'authority' and fullchain = $2`,
    [hostname, fullchain, renewed.fullchain, renewed.privateKey, renewed.expiresAt.toISOString()],
  )
}

/** Also deletes the certificates. Returns false when the app does not have the host name. */
export async function removeHost(db: Query, appId: string, hostname: string): Promise<boolean> {
  const { rowCount } = await db.query('delete from host where app_id = $1 and hostname = $2', [appId, hostname])
  return rowCount === 1
}

export async function removeCertificate(
  db: Query,
  appId: string,
  hostname: string,
  source: CertificateSource,
): Promise<boolean> {
  const { rowCount } = await db.query('delete from certificate where app_id = $1 and hostname = $2 and source = $3', [
    appId,
    hostname,
    source,
  ])
  return rowCount === 1
}

/** The public IPv4 and IPv6 addresses of an app. */
export async function listPublicAddresses(db: Query, appId: string): Promise<{ a: string[]; aaaa: string[] }> {
  const { rows } = await db.query<{ ip: string; family: number }>({
    name: 'list-public-addresses',
    text: `select host(ip) as ip, family(ip) as family from ip
           where app_id = $1 and type in ('v4', 'v6', 'shared_v4') order by created_at`,
    values: [appId],
  })
  const of = (family: number) => rows.filter((row) => row.family === family).map((row) => row.ip)
  return { a: of(4), aaaa: of(6) }
}
