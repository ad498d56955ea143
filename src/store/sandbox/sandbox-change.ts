import { type Sandbox, type SandboxImage, sandboxStates } from '../../model/sandbox/sandbox.ts'
import type { Query, Tx } from '../db.ts'
import { transition } from '../transition.ts'
import { aliveSandbox } from './sandbox.ts'

export type SandboxChanges = Partial<
  Pick<Sandbox, 'urlAuth' | 'privateAccess' | 'labels' | 'environment' | 'memoryMb' | 'cpus' | 'storageGb' | 'region'> &
    Pick<Sandbox, 'networkPolicy' | 'privileges' | 'resources'>
>

const changeableColumns: Record<keyof SandboxChanges, string> = {
  urlAuth: 'url_auth',
  privateAccess: 'private_access',
  labels: 'labels',
  environment: 'environment',
  memoryMb: 'memory_mb',
  cpus: 'cpus',
  storageGb: 'storage_gb',
  region: 'region',
  networkPolicy: 'network_policy',
  privileges: 'privileges',
  resources: 'resources',
}

/** Changes only the given settings. Returns false when the sandbox is being deleted. */
export async function updateSandbox(tx: Tx, id: string, changes: SandboxChanges): Promise<boolean> {
  const given = (Object.keys(changeableColumns) as (keyof SandboxChanges)[]).filter((key) => changes[key] !== undefined)
  const assignments = given.map((key, index) => `${changeableColumns[key]} = $${index + 2}`)
  const { rowCount } = await tx.query(
    `update sandbox set ${[...assignments, 'updated_at = now()'].join(', ')} where id = $1 and ${aliveSandbox}`,
    [id, ...given.map((key) => changes[key])],
  )
  return rowCount === 1
}

/** Marks the sandbox as running; throws when its state does not allow that. */
export async function useSandbox(tx: Tx, id: string): Promise<void> {
  await tx.query('update sandbox set last_running_at = now() where id = $1', [id])
  await transition(tx, 'sandbox', sandboxStates, id, 'use')
}

export async function setSandboxImage(db: Query, id: string, image: SandboxImage): Promise<void> {
  await db.query('update sandbox set image = $2 where id = $1', [id, image])
}

/** Null when it starts again. The sandbox has another status then, which watchers are told. */
export async function setSandboxProblem(db: Query, id: string, problem: string | null): Promise<void> {
  await db.query('update sandbox set problem = $2, updated_at = now() where id = $1 and problem is distinct from $2', [
    id,
    problem,
  ])
}

export async function setUsedBytes(tx: Tx, id: string, bytes: number): Promise<void> {
  await tx.query('update sandbox set used_bytes = $2, measured_at = now() where id = $1', [id, bytes])
}

/** Longer than a restart takes. If the process that holds the sandbox dies, requests wait no longer than this. */
const holdSeconds = 30

/** Makes requests wait while the caller stops and starts the sandbox. */
export async function holdSandbox(db: Query, id: string): Promise<void> {
  await db.query(`update sandbox set held_until = now() + interval '1 second' * $2 where id = $1`, [id, holdSeconds])
}

export async function releaseSandbox(db: Query, id: string): Promise<void> {
  await db.query('update sandbox set held_until = null where id = $1', [id])
}

/** Frees the slot, and with it uids and addresses. The box must be gone. */
export async function releaseSlot(tx: Tx, id: string): Promise<void> {
  for (const table of ['service', 'checkpoint', 'task'])
    await tx.query(`delete from ${table} where sandbox_id = $1`, [id])
  await tx.query('update sandbox set slot = null where id = $1', [id])
}
