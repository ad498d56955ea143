import { Type } from 'typebox'
import { type ContainerState, containerPhases } from '../../model/app/container/config.ts'
import type { ExitEvent, MachineDetails, MachineEvent, MachineState } from '../../model/app/machine.ts'
import { machineStates } from '../../model/app/machine.ts'
import type { MachineConfig } from '../../model/app/machine-config.ts'
import { readImage } from '../../model/app/machine-config-check.ts'
import { machineAddress } from '../../model/network.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import { type Micros, nowMicros, toMillis } from '../../model/time.ts'

const Time = Type.String({ format: 'date-time' })

export const EventView = Type.Object(
  {
    id: Type.String(),
    type: Type.String({
      description: '`launch`, `start`, `exit`, `restart`, `update`, `stop`, `suspend`, `destroy`, …',
    }),
    status: Type.String({ description: 'The state after the event.' }),
    source: Type.Enum(['user', 'flyd', 'proxy']),
    timestamp: Type.Integer({ description: 'Milliseconds since the epoch.' }),
    request: Type.Optional(
      Type.Unsafe<Record<string, unknown>>({
        type: 'object',
        additionalProperties: true,
        description:
          'How the program ended (`exit_event`), how often it was restarted, or why an operation failed (`error`).',
      }),
    ),
  },
  { title: 'MachineEvent' },
)

/** The configuration is stored as it was sent, so it has no schema of its own. */
export const ConfigView = Type.Unsafe<MachineConfig>({
  type: 'object',
  additionalProperties: true,
  description: 'The configuration as it was sent, with defaults for sizes and the names and sizes of its volumes.',
})

export const MachineView = Type.Object(
  {
    id: Type.String({ description: '14 hexadecimal digits.' }),
    name: Type.String(),
    state: Type.Enum(Object.keys(machineStates) as (keyof typeof machineStates)[]),
    region: Type.String(),
    instance_id: Type.String({ description: 'The id of its version: 26 characters that sort by time.' }),
    version: Type.String({ description: 'Alias of `instance_id`.' }),
    private_ip: Type.String({
      description: 'Its address in the private network; empty when the host has no private networks.',
    }),
    image_ref: Type.Object({
      registry: Type.String(),
      repository: Type.String(),
      tag: Type.String(),
      digest: Type.String({ description: 'Empty until the image has been resolved.' }),
      labels: Type.Record(Type.String(), Type.String()),
    }),
    created_at: Time,
    updated_at: Time,
    cordoned: Type.Boolean({ description: 'The edge sends no requests to it.' }),
    config: Type.Optional(ConfigView),
    incomplete_config: Type.Optional(Type.Null()),
    events: Type.Optional(Type.Array(EventView, { description: 'Newest first.' })),
    checks: Type.Optional(
      Type.Array(
        Type.Object({
          name: Type.String(),
          status: Type.Enum(['passing', 'warning', 'critical']),
          output: Type.String(),
          updated_at: Time,
        }),
      ),
    ),
    host_status: Type.Optional(Type.Enum(['ok'])),
    nonce: Type.Optional(Type.String({ description: 'The nonce of the requested lease.' })),
    lease: Type.Optional(Type.Object({ description: Type.String(), expires_at: Type.Integer(), owner: Type.String() })),
    failure: Type.Optional(Type.String({ description: 'Why it did not start or was destroyed.' })),
    restart_count: Type.Integer({
      description: 'How often its program was restarted after an exit, since the last start.',
    }),
    last_exit: Type.Optional(
      Type.Unsafe<ExitEvent>({
        type: 'object',
        additionalProperties: true,
        description: 'How its program last exited since the last start, in the form of `exit_event`.',
      }),
    ),
    next_restart_at: Type.Optional({ ...Time, description: 'Set while its program is down and will be restarted.' }),
    warnings: Type.Optional(
      Type.Array(Type.String(), {
        description:
          'What is wrong although it runs, such as a service whose `internal_port` nothing listens on. Absent until its program was looked at, which takes some seconds after a start.',
      }),
    ),
    containers: Type.Optional(
      Type.Array(
        Type.Object({
          name: Type.String({ examples: ['web'] }),
          state: Type.Enum(containerPhases),
          health: Type.Optional(
            Type.Enum(['healthy', 'unhealthy'], { description: 'Absent until its health checks have decided.' }),
          ),
          exit_code: Type.Optional(Type.Integer({ description: 'Of its last exit since the machine was started.' })),
          restart_count: Type.Integer(),
        }),
        { description: 'Absent in a machine that runs one program.' },
      ),
    ),
    app_name: Type.Optional(Type.String()),
  },
  { title: 'Machine' },
)

export interface ViewOptions {
  summary?: boolean
  includeLease?: boolean
  /** Set for the caller that acquired the lease. */
  includeNonce?: boolean
}

export function machineView(settings: PlatformSettings, machine: MachineDetails, options: ViewOptions = {}) {
  const { id, name, state, region, instanceId, slot, lease } = machine
  return {
    id,
    name,
    state,
    region,
    instance_id: instanceId,
    version: instanceId,
    private_ip:
      slot === null || settings.privateNetworkGap !== undefined
        ? ''
        : machineAddress(settings.homeNumber, machine.networkNumber, slot),
    image_ref: imageView(machine),
    created_at: wholeSeconds(machine.createdAt),
    updated_at: wholeSeconds(machine.updatedAt),
    cordoned: machine.cordoned,
    ...(machine.failure !== null && { failure: machine.failure }),
    ...programView(machine),
    ...(machine.config.containers && { containers: containersView(machine) }),
    ...(!options.summary && {
      config: configView(machine),
      incomplete_config: null,
      events: machine.events.map(eventView),
      checks: machine.checks.map(({ updatedAt, ...check }) => ({ ...check, updated_at: `${updatedAt.slice(0, 19)}Z` })),
      host_status: 'ok' as const,
    }),
    ...(options.includeNonce && lease && { nonce: lease.nonce }),
    ...(options.includeLease &&
      lease && { lease: { description: lease.description, expires_at: lease.expiresAt, owner: lease.owner } }),
  }
}

const statesWithContainers: MachineState[] = ['starting', 'started', 'stopping', 'suspending', 'suspended']

/** The states are recorded a moment after the start. */
function containersView({ config, containers, state }: MachineDetails): ContainerState[] {
  const isRunning = statesWithContainers.includes(state)
  if (isRunning && containers) return containers
  const each = isRunning ? 'pending' : 'stopped'
  return (config.containers ?? []).map(({ name }) => ({ name, state: each, restart_count: 0 }))
}

/** A restart that is due has probably happened: exits are recorded, and restarts are not. */
function programView({ restartCount, lastExit, nextRestartAt, warnings }: MachineDetails) {
  const isDown = nextRestartAt !== null && nextRestartAt > nowMicros()
  return {
    restart_count: restartCount,
    ...(lastExit && { last_exit: lastExit }),
    ...(isDown && { next_restart_at: new Date(toMillis(nextRestartAt)).toISOString() }),
    ...(warnings && { warnings }),
  }
}

/** Clients that copy a machine create its volumes with the name and the size of their mounts. */
export function configView({ config, volumes }: MachineDetails): MachineConfig {
  if (!config.mounts || !volumes) return config
  const mounts = config.mounts.map((mount) => {
    const volume = volumes[mount.volume ?? '']
    return volume ? { ...mount, name: volume.name, size_gb: volume.sizeGb } : mount
  })
  return { ...config, mounts }
}

/** Until the image has been resolved, the fields are derived from its reference. */
function imageView({ image, config }: MachineDetails) {
  if (image) return image
  const reference = readImage(config.image, true)
  const { registry, repository, tag, digest } =
    reference.kind === 'registry'
      ? reference
      : { registry: '', repository: config.image, tag: undefined, digest: undefined }
  return { registry, repository, tag: tag ?? '', digest: digest ?? '', labels: {} }
}

export function eventView({ request, ...event }: MachineEvent) {
  if (request === null) return event
  const { exit_event } = request
  return { ...event, request: { ...request, ...(exit_event && { MonitorEvent: { exit_event } }) } }
}

function wholeSeconds(time: Micros): string {
  return `${new Date(toMillis(time)).toISOString().slice(0, 19)}Z`
}
