import type { SandboxDetails } from '../model/sandbox.ts'
import type { Service, ServiceDefinition } from '../model/service.ts'
import type { Caller } from '../model/token.ts'
import type { Query, Tx } from './db.ts'
import { visibleSandbox } from './sandbox.ts'
import { callerColumns, callerCte, callerOf } from './token.ts'

const columns = `service.name, service.cmd, service.args, service.needs, service.http_port as "httpPort", service.env,
  service.dir, service.health, service.wanted`

export interface FoundService {
  caller: Caller
  /** Undefined when there is none, or none that the token may see. */
  sandbox: Pick<SandboxDetails, 'id' | 'state'> | undefined
  service: Service | undefined
}

type Row = Caller & { [K in keyof Service]: Service[K] | null } & {
  sandboxId: string | null
  sandboxState: SandboxDetails['state']
}

/** The token, the sandbox and the service in one statement: it answers the most frequent question there is. */
export async function findService(
  db: Query,
  tokenHash: Buffer,
  sandbox: string,
  name: string,
): Promise<FoundService | undefined> {
  const { rows } = await db.query<Row>({
    name: 'find-service',
    text: `with ${callerCte}
           select ${callerColumns}, found.* from caller left join lateral (
             select sandbox.id as "sandboxId", sandbox.state as "sandboxState", ${columns}
             from sandbox left join service on service.sandbox_id = sandbox.id and service.name = $3
             where sandbox.name = $2 and ${visibleSandbox}) found on true`,
    values: [tokenHash, sandbox, name],
  })
  const row = rows[0]
  if (!row) return undefined
  return {
    caller: callerOf(row),
    sandbox: row.sandboxId === null ? undefined : { id: row.sandboxId, state: row.sandboxState },
    service: row.name === null ? undefined : (row as Service),
  }
}

/** By name. */
export async function listServices(db: Query, sandboxId: string): Promise<Service[]> {
  const { rows } = await db.query<Service>({
    name: 'list-services',
    text: `select ${columns} from service where sandbox_id = $1 order by name`,
    values: [sandboxId],
  })
  return rows
}

/** It is to run from now on. */
export async function putService(tx: Tx, sandboxId: string, service: ServiceDefinition): Promise<void> {
  await tx.query(
    `insert into service (sandbox_id, name, cmd, args, needs, http_port, env, dir, health)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
     on conflict (sandbox_id, name) do update set cmd = excluded.cmd, args = excluded.args, needs = excluded.needs,
       http_port = excluded.http_port, env = excluded.env, dir = excluded.dir, health = excluded.health, wanted = true,
       updated_at = now()`,
    [
      sandboxId,
      service.name,
      service.cmd,
      service.args,
      service.needs,
      service.httpPort,
      JSON.stringify(service.env),
      service.dir,
      service.health && JSON.stringify(service.health),
    ],
  )
}

export async function setWanted(tx: Tx, sandboxId: string, names: string[], wanted: boolean): Promise<void> {
  await tx.query({
    name: 'set-service-wanted',
    text: 'update service set wanted = $3 where sandbox_id = $1 and name = any($2)',
    values: [sandboxId, names, wanted],
  })
}

export async function deleteServiceRow(tx: Tx, sandboxId: string, name: string): Promise<void> {
  await tx.query('delete from service where sandbox_id = $1 and name = $2', [sandboxId, name])
}
