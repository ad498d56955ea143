import { requireCaller } from '../../model/account/caller.ts'
import type { Caller } from '../../model/account/token.ts'
import { appNamePattern } from '../../model/app/app.ts'
import type { ImageRef, Machine, MachineDetails, MachineState } from '../../model/app/machine.ts'
import { machineIdPattern } from '../../model/app/machine.ts'
import { forbidden, notFound } from '../../model/errors.ts'
import { appCallerCte, callerColumns, callerOf } from '../account/token.ts'
import type { Db, Query, Tx } from '../db.ts'
import { openSealedSecrets } from './secret.ts'

const machineColumns = `machine.id, machine.app_id as "appId", machine.name, machine.state,
  machine.state_since as "stateSince", machine.progress_at as "progressAt", machine.region,
  machine.instance_id as "instanceId", machine.config, machine.image,
  machine.container_images as "containerImages", machine.containers, machine.slot,
  machine.network_number as "networkNumber", machine.wanted, machine.cordoned, machine.restart_count as "restartCount",
  machine.last_exit as "lastExit", machine.next_restart_at as "nextRestartAt", machine.warnings, machine.failure, machine.stop_signal as "stopSignal", machine.stop_timeout_ms as "stopTimeoutMs",
  machine.secrets_version as "secretsVersion",
  machine.policies_version <> (select policies_version from app where app.id = machine.app_id) as "policiesChanged",
  machine.exits_seen as "exitsSeen", machine.launched,
  machine.created_at as "createdAt", machine.updated_at as "updatedAt"`

/** The number of events that are shown with a machine. */
const shownEvents = 20

const relatedColumns = `
  case when jsonb_typeof(machine.config -> 'mounts') = 'array' then (
    select json_object_agg(id, json_build_object('name', name, 'sizeGb', size_gb)) from volume
    where volume.machine_id = machine.id) end as volumes,
  coalesce((select json_agg(shown order by id desc) from (
    select id, type, status, source, (extract(epoch from at) * 1000)::bigint as timestamp, request
    from machine_event where machine_id = machine.id order by id desc limit ${shownEvents}) shown), '[]') as events,
  coalesce((select json_agg(json_build_object('name', name, 'status', status, 'output', output, 'updatedAt', updated_at)
    order by name) from machine_check where machine_id = machine.id), '[]') as checks,
  case when machine.lease_until > now() then json_build_object('nonce', machine.lease_nonce, 'owner', machine.lease_owner,
    'description', machine.lease_description, 'expiresAt', extract(epoch from machine.lease_until)::bigint) end as lease`

const machineDetails = `${machineColumns}, ${relatedColumns}`

/** The app of a machine request. */
export interface MachineApp {
  id: string
  name: string
  orgId: string
  network: string
  secretsVersion: number
}

interface FoundMachine {
  caller: Caller
  app: MachineApp | undefined
  machine: MachineDetails | undefined
}

type Row = Caller & { app: MachineApp | null } & { [K in keyof MachineDetails]: MachineDetails[K] | null }

const appObject = `json_build_object('id', app.id, 'name', app.name, 'orgId', app.org_id, 'network', app.network,
  'secretsVersion', app.secrets_version)`

/** Undefined when the token is not valid. The app may belong to another organization; then the machine is not read. */
async function findMachine(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  appName: string,
  id: string,
): Promise<FoundMachine | undefined> {
  const [row] = await db.read<Row>({
    name: 'find-machine',
    text: `with ${appCallerCte}
           select ${callerColumns}, app.object as app, found.* from caller
           left join lateral (
             select ${appObject} as object, app.id as found_app, app.org_id as found_org from app
             where app.name = $2 and app.state = 'active') app on true
           left join lateral (
             select ${machineDetails} from machine
             where machine.id = $3 and machine.app_id = found_app
               and (token_org is null or token_org = found_org)) found on true`,
    values: [tokenHash, appName, machineIdPattern.test(id) ? id : ''],
  })
  if (!row) return undefined
  return {
    caller: callerOf(row),
    app: row.app ?? undefined,
    machine: row.id === null ? undefined : (row as MachineDetails),
  }
}

export interface MachineFilter {
  /** Whether to include destroyed machines. */
  includeDeleted: boolean
  /** Null for all regions. */
  region: string | null
  states: readonly string[] | null
  metadata: Record<string, string>
}

const filtered = (from: number) => `($${from} or machine.state <> 'destroyed')
  and ($${from + 1}::text is null or machine.region = $${from + 1})
  and ($${from + 2}::text[] is null or machine.state = any($${from + 2}))
  and ($${from + 3}::jsonb = '{}' or coalesce(machine.config -> 'metadata', '{}') @> $${from + 3})`

function filterValues({ includeDeleted, region, states, metadata }: MachineFilter): unknown[] {
  return [includeDeleted, region, states, metadata]
}

/** The machines of an app, oldest first. */
export async function listMachines(db: Query, appId: string, filter: MachineFilter): Promise<MachineDetails[]> {
  const { rows } = await db.query<MachineDetails>({
    name: 'list-machines',
    text: `select ${machineDetails} from machine where app_id = $1 and ${filtered(2)} order by machine.created_at, machine.id`,
    values: [appId, ...filterValues(filter)],
  })
  return rows
}

export interface OrgMachine extends MachineDetails {
  appName: string
  /** The timestamp as text, for the cursor. */
  updatedText: string
}

/** A page of an organization's machines, least recently changed first. */
export async function listOrgMachines(
  db: Query,
  orgId: string,
  filter: MachineFilter,
  page: { after: { at: string; id: string } | null; limit: number },
): Promise<OrgMachine[]> {
  const { rows } = await db.query<OrgMachine>({
    name: 'list-org-machines',
    text: `select ${machineDetails}, app.name as "appName", machine.updated_at::text as "updatedText"
           from app join machine on machine.app_id = app.id
           where app.org_id = $1 and app.state = 'active' and ${filtered(2)}
             and ($6::timestamptz is null or (machine.updated_at, machine.id) > ($6, $7))
           order by machine.updated_at, machine.id limit $8`,
    values: [orgId, ...filterValues(filter), page.after?.at ?? null, page.after?.id ?? '', page.limit],
  })
  return rows
}

/** Reads without a token, for the reconciler. */
export async function loadMachine(db: Query, id: string): Promise<Machine | undefined> {
  const { rows } = await db.query<Machine>({
    name: 'load-machine',
    text: `select ${machineColumns} from machine where id = $1`,
    values: [id],
  })
  return rows[0]
}

/** Locks the row until the transaction ends. */
export async function lockMachine(tx: Tx, id: string): Promise<MachineDetails | undefined> {
  const { rows } = await tx.query<MachineDetails>({
    name: 'lock-machine-details',
    text: `select ${machineDetails} from machine where id = $1 for no key update`,
    values: [id],
  })
  return rows[0]
}

/** The app name and the decrypted secrets for the environment of its program. */
export async function readMachineEnvironment(
  db: Query,
  id: string,
  encryptionKey: Buffer,
): Promise<{ appName: string; secrets: Record<string, string> }> {
  const { rows } = await db.query<{ appName: string; secrets: Buffer | null }>({
    name: 'read-machine-surroundings',
    text: `select app.name as "appName", machine.secrets from machine join app on app.id = machine.app_id
           where machine.id = $1`,
    values: [id],
  })
  if (!rows[0]) throw new Error(`machine ${id} does not exist`)
  const { appName, secrets } = rows[0]
  return { appName, secrets: secrets === null ? {} : openSealedSecrets(secrets, encryptionKey) }
}

/** The columns that waiting for a state needs. */
export async function readMachineState(
  db: Pick<Db, 'read'>,
  id: string,
): Promise<{ state: MachineState; instanceId: string; failure: string | null; eventId: string | null } | undefined> {
  const rows = await db.read<{
    state: MachineState
    instanceId: string
    failure: string | null
    eventId: string | null
  }>({
    name: 'read-machine-state',
    text: `select state, instance_id as "instanceId", failure,
             (select id from machine_event where machine_id = machine.id order by id desc limit 1) as "eventId"
           from machine where id = $1`,
    values: [id],
  })
  return rows[0]
}

export interface MachineVersion {
  version: string
  config: MachineDetails['config']
}

/** Newest first. */
export async function listVersions(db: Query, id: string): Promise<MachineVersion[]> {
  const { rows } = await db.query<MachineVersion>({
    name: 'list-machine-versions',
    text: `select version, config from machine_version where machine_id = $1 order by version desc limit 100`,
    values: [id],
  })
  return rows
}

/** Undefined when the current version is the first. */
export async function findVersionBefore(
  db: Query,
  { id, instanceId }: Pick<Machine, 'id' | 'instanceId'>,
): Promise<MachineVersion | undefined> {
  const { rows } = await db.query<MachineVersion>({
    name: 'find-machine-version-before',
    text: `select version, config from machine_version where machine_id = $1 and version < $2
           order by version desc limit 1`,
    values: [id, instanceId],
  })
  return rows[0]
}

/** The digests of the images of all machines, running or not. */
export async function listUsedImages(db: Query): Promise<string[]> {
  const { rows } = await db.query<{ digest: ImageRef['digest'] }>(
    `select distinct used ->> 'digest' as digest from machine
     cross join lateral (
       select image as used union all select value from jsonb_each(coalesce(container_images, '{}'))) images
     where used is not null and state <> 'destroyed'`,
  )
  return rows.map((row) => row.digest)
}

export interface VisibleApp {
  caller: Caller
  app: MachineApp
}

export interface VisibleMachine extends VisibleApp {
  machine: MachineDetails
}

/** Throws unless the token is valid and may see the app. */
export async function getMachineApp(db: Pick<Db, 'read'>, tokenHash: Buffer, appName: string): Promise<VisibleApp> {
  return requireApp(await findMachine(db, tokenHash, appNameOrNone(appName), ''))
}

export async function getVisibleMachine(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  appName: string,
  id: string,
): Promise<VisibleMachine> {
  const found = await findMachine(db, tokenHash, appNameOrNone(appName), id)
  const visible = requireApp(found)
  if (!found?.machine) throw machineNotFound()
  return { ...visible, machine: found.machine }
}

export function machineNotFound() {
  return notFound('machine not found')
}

/** Invalid names must not reach the database, which rejects NUL bytes with an error. */
function appNameOrNone(name: string): string {
  return appNamePattern.test(name) ? name : ''
}

function requireApp(found: FoundMachine | undefined): VisibleApp {
  const caller = requireCaller(found?.caller)
  if (!found?.app) throw notFound('app not found')
  if (caller.orgId !== null && caller.orgId !== found.app.orgId) throw forbidden('unauthorized')
  return { caller, app: found.app }
}

/** Running machines with health checks. */
export async function listMachinesToCheck(db: Query): Promise<Machine[]> {
  const { rows } = await db.query<Machine>({
    name: 'list-machines-to-check',
    text: `select ${machineColumns} from machine where state = 'started'
             and (config ? 'checks' or jsonb_path_exists(config, '$.services[*].checks[*]')
               or jsonb_path_exists(config, '$.containers[*].healthchecks[*]'))`,
    values: [],
  })
  return rows
}
