import type { SandboxDetails } from '../../model/sandbox/sandbox.ts'
import type { Service, ServiceDefinition } from '../../model/sandbox/service.ts'
import { callerCte } from '../account/token.ts'
import type { Db, Query, Tx } from '../db.ts'
import { visibleSandbox } from './sandbox.ts'

const columns = `service.name, service.definition, service.http_port as "httpPort", service.health, service.wanted,
  service.revision, service.stop_ms as "stopMs", service.problem`

type Stored = Pick<ServiceDefinition, 'cmd' | 'args' | 'needs' | 'env' | 'dir'>

interface Row extends Pick<Service, 'name' | 'httpPort' | 'health' | 'wanted' | 'revision' | 'stopMs' | 'problem'> {
  definition: Stored
}

export interface FoundService {
  /** Undefined when there is none that the token may see. */
  sandbox: Pick<SandboxDetails, 'id' | 'state'> | undefined
  service: Service | undefined
}

/**
 * Reads token, sandbox and service in one statement with few columns, because it is the most frequent request. Undefined
 * when the token is not valid.
 */
export async function findService(
  db: Pick<Db, 'read'>,
  tokenHash: Buffer,
  sandbox: string,
  name: string,
): Promise<FoundService | undefined> {
  const [row] = await db.read<Row & { sandboxId: string | null; sandboxState: SandboxDetails['state'] }>({
    name: 'find-service',
    text: `with ${callerCte}
           select sandbox.id as "sandboxId", sandbox.state as "sandboxState", ${columns}
           from caller left join sandbox on sandbox.name = $2 and ${visibleSandbox}
             left join service on service.sandbox_id = sandbox.id and service.name = $3`,
    values: [tokenHash, sandbox, name],
  })
  if (!row) return undefined
  return {
    sandbox: row.sandboxId === null ? undefined : { id: row.sandboxId, state: row.sandboxState },
    service: row.name === null ? undefined : serviceOf(row),
  }
}

function serviceOf({ name, definition, httpPort, health, ...rest }: Row): Service {
  const { cmd, args, needs, env, dir } = definition
  const { wanted, revision, stopMs, problem } = rest
  return { name, cmd, args, needs, httpPort, env, dir, health, wanted, revision, stopMs, problem }
}

/** By name. */
export async function listServices(db: Query, sandboxId: string): Promise<Service[]> {
  const { rows } = await db.query<Row>({
    name: 'list-services',
    text: `select ${columns} from service where sandbox_id = $1 order by name`,
    values: [sandboxId],
  })
  return rows.map(serviceOf)
}

/** Also marks the service as wanted. A new revision replaces what runs. */
export async function putService(
  tx: Tx,
  sandboxId: string,
  service: ServiceDefinition,
  { isNew }: { isNew: boolean },
): Promise<void> {
  const { name, cmd, args, needs, env, dir, httpPort, health } = service
  const definition: Stored = { cmd, args, needs, env, dir }
  await tx.query(
    `insert into service (sandbox_id, name, definition, http_port, health, revision) values ($1, $2, $3, $4, $5, 1)
     on conflict (sandbox_id, name) do update set definition = excluded.definition, http_port = excluded.http_port,
       health = excluded.health, wanted = true, ready_at = null, failure = null, problem = null, stop_ms = null,
       revision = service.revision + $6, updated_at = now()`,
    [sandboxId, name, JSON.stringify(definition), httpPort, health && JSON.stringify(health), isNew ? 1 : 0],
  )
}

/** Whoever has the turn of the service next ends its process and starts another. */
export async function renewService(tx: Tx, sandboxId: string, name: string): Promise<void> {
  await tx.query(
    'update service set revision = revision + 1, ready_at = null, problem = null where sandbox_id = $1 and name = $2',
    [sandboxId, name],
  )
}

export async function setWanted(tx: Tx, sandboxId: string, names: string[]): Promise<void> {
  await tx.query({
    name: 'set-services-wanted',
    text: 'update service set wanted = true, stop_ms = null where sandbox_id = $1 and name = any($2) and not wanted',
    values: [sandboxId, names],
  })
}

/** It has this time to end before it is killed. */
export async function setUnwanted(tx: Tx, sandboxId: string, name: string, stopMs: number): Promise<void> {
  await tx.query({
    name: 'set-service-unwanted',
    text: `update service set wanted = false, ready_at = null, problem = null, stop_ms = $3
           where sandbox_id = $1 and name = $2`,
    values: [sandboxId, name, stopMs],
  })
}

/** Null means that the last change was made. */
export async function setServiceProblem(
  db: Query,
  sandboxId: string,
  name: string,
  problem: string | null,
): Promise<void> {
  await db.query({
    name: 'set-service-problem',
    text: 'update service set problem = $3 where sandbox_id = $1 and name = $2 and problem is distinct from $3',
    values: [sandboxId, name, problem],
  })
}

/** Null means that it was not ready. */
export async function setReadyAt(db: Query, sandboxId: string, name: string, atMs: number | null): Promise<void> {
  await db.query({
    name: 'set-service-ready',
    text: `update service set ready_at = to_timestamp($3::float8 / 1000)
           where sandbox_id = $1 and name = $2 and ($3::float8 is not null or ready_at is not null)`,
    values: [sandboxId, name, atMs],
  })
}

/** Null means that it has not failed. */
export async function setFailure(db: Query, sandboxId: string, name: string, failure: string | null): Promise<void> {
  await db.query({
    name: 'set-service-failure',
    text: 'update service set failure = $3 where sandbox_id = $1 and name = $2 and failure is distinct from $3',
    values: [sandboxId, name, failure],
  })
}

export async function deleteServiceRow(tx: Tx, sandboxId: string, name: string): Promise<void> {
  await tx.query('delete from service where sandbox_id = $1 and name = $2', [sandboxId, name])
}
