// Commands that callers and the edge give to a machine. States are written only by `transition`.
import { type EventSource, type MachineDetails, machineStates } from '../../model/app/machine.ts'
import type { MachineConfig } from '../../model/app/machine-config.ts'
import type { KeptConfig } from '../../model/app/machine-config-check.ts'
import type { Tx } from '../db.ts'
import { transition } from '../transition.ts'
import { enqueue } from '../work.ts'
import type { NewMachine } from './machine-create.ts'
import { insertMachineEvent } from './machine-event.ts'

/** Replaces the config with a new version. `keepsImage` is set when the image reference did not change. */
export async function insertVersion(
  tx: Tx,
  id: string,
  version: Pick<NewMachine, 'instanceId' | 'config' | 'wanted' | 'secrets' | 'secretsVersion'> & {
    keepsImage: boolean
  },
): Promise<void> {
  await tx.query({
    name: 'insert-machine-version',
    text: `with changed as (
             update machine set instance_id = $2, config = $3, wanted = $4, secrets = $5, secrets_version = $6,
               image = case when $7 then image end, container_images = case when $7 then container_images end,
               containers = null, exits_seen = 0, restart_count = 0, failure = null, progress_at = null,
               stop_signal = null, stop_timeout_ms = null,
               next_start_at = case when config->>'schedule' = $8 and next_start_at is not null
                 then next_start_at else now() + $9::interval end
             where id = $1)
           insert into machine_version (machine_id, version, config) values ($1, $2, $3)`,
    values: [
      id,
      version.instanceId,
      version.config,
      version.wanted,
      version.secrets,
      version.secretsVersion,
      version.keepsImage,
      version.config.schedule ?? null,
      scheduleInterval(version.config),
    ],
  })
  await tx.query({
    name: 'trim-machine-versions',
    text: `delete from machine_version where machine_id = $1 and version < (
             select version from machine_version where machine_id = $1 order by version desc offset $2 limit 1)`,
    values: [id, keptVersions - 1],
  })
}

/** As many as a list shows. */
const keptVersions = 100

const scheduleIntervals: Record<string, string> = {
  hourly: '1 hour',
  daily: '1 day',
  weekly: '1 week',
  monthly: '1 month',
}

/** The time between scheduled starts, as a PostgreSQL interval. */
export function scheduleInterval({ schedule }: Pick<MachineConfig, 'schedule'>): string | null {
  return schedule ? scheduleIntervals[schedule]! : null
}

/** Throws when the state does not allow it. */
export async function launchMachine(
  tx: Tx,
  machine: Pick<MachineDetails, 'id' | 'config'>,
  command: 'launch' | 'start',
  source: EventSource = 'user',
): Promise<void> {
  await tx.query({
    name: 'want-machine',
    text: `update machine set wanted = true, restart_count = 0, failure = null, progress_at = null,
             next_start_at = now() + $2::interval where id = $1`,
    values: [machine.id, scheduleInterval(machine.config)],
  })
  await transition(tx, 'machine', machineStates, machine.id, command, '', command === 'launch' ? 'flyd' : source)
}

/** A machine that is created without being started waits for a start as `stopped`. */
export async function keepStopped(tx: Tx, id: string): Promise<void> {
  await transition(tx, 'machine', machineStates, id, 'skip launch', '', 'flyd')
}

export async function stopMachine(
  tx: Tx,
  id: string,
  options: { signal: string | null; timeoutMs: number | null },
  source: EventSource = 'user',
): Promise<void> {
  await tx.query({
    name: 'unwant-machine',
    text: `update machine set wanted = false, stop_signal = $2, stop_timeout_ms = $3, progress_at = null where id = $1`,
    values: [id, options.signal, options.timeoutMs],
  })
  await transition(tx, 'machine', machineStates, id, 'stop', '', source)
}

export async function restartMachine(
  tx: Tx,
  id: string,
  options: { signal: string | null; timeoutMs: number | null },
): Promise<void> {
  await tx.query({
    name: 'restart-machine',
    text: `update machine set wanted = true, stop_signal = $2, stop_timeout_ms = $3, progress_at = null where id = $1`,
    values: [id, options.signal, options.timeoutMs],
  })
  await transition(tx, 'machine', machineStates, id, 'restart')
}

export async function suspendMachine(tx: Tx, id: string, source: EventSource = 'user'): Promise<void> {
  await tx.query(
    `update machine set wanted = false, stop_signal = null, stop_timeout_ms = null, progress_at = null where id = $1`,
    [id],
  )
  await transition(tx, 'machine', machineStates, id, 'suspend', '', source)
}

export async function destroyMachine(tx: Tx, id: string, source: EventSource = 'user'): Promise<void> {
  await tx.query('update machine set wanted = false where id = $1', [id])
  await transition(tx, 'machine', machineStates, id, 'delete', '', source)
}

export async function setCordoned(tx: Tx, id: string, cordoned: boolean): Promise<void> {
  await tx.query('update machine set cordoned = $2 where id = $1', [id, cordoned])
  await insertMachineEvent(tx, id, {
    type: cordoned ? 'cordon' : 'uncordon',
    status: cordoned ? 'cordoned' : 'uncordoned',
    source: 'user',
  })
}

export async function setConfig(tx: Tx, id: string, config: KeptConfig): Promise<void> {
  await tx.query('update machine set config = $2 where id = $1', [id, config])
}

/** Network policies select machines by metadata, so a running machine's firewall has to be reconciled. */
export async function setMetadata(tx: Tx, id: string, metadata: Record<string, string>): Promise<void> {
  const { rows } = await tx.query<{ needsPolicies: boolean }>({
    name: 'set-machine-metadata',
    text: `update machine set config = jsonb_set(config, '{metadata}', $2),
             policies_version = case policies_version when 0 then 0 else -1 end
           where id = $1 returning state = 'started' and policies_version <> 0 as "needsPolicies"`,
    values: [id, metadata],
  })
  if (rows[0]?.needsPolicies) await enqueue(tx, 'machine', id)
}

export async function setLease(
  tx: Tx,
  id: string,
  lease: { nonce: string; owner: string; description: string; seconds: number },
): Promise<void> {
  await tx.query({
    name: 'set-machine-lease',
    text: `update machine set lease_nonce = $2, lease_owner = $3, lease_description = $4,
             lease_until = now() + interval '1 second' * $5 where id = $1`,
    values: [id, lease.nonce, lease.owner, lease.description, lease.seconds],
  })
}

export async function clearLease(tx: Tx, id: string): Promise<void> {
  await tx.query('update machine set lease_nonce = null, lease_until = null where id = $1', [id])
}
