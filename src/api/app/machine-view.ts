import { Type } from 'typebox'
import type { MachineDetails, MachineEvent } from '../../model/app/machine.ts'
import { machineStates } from '../../model/app/machine.ts'
import type { MachineConfig } from '../../model/app/machine-config.ts'
import { readImage } from '../../model/app/machine-config-check.ts'
import { machineAddress } from '../../model/network.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import { type Micros, toMillis } from '../../model/time.ts'

const Time = Type.String({ format: 'date-time' })

export const EventView = Type.Object(
  {
    id: Type.String(),
    type: Type.String({
      description: '`launch`, `start`, `exit`, `restart`, `update`, `stop`, `suspend`, `destroy`, …',
    }),
    status: Type.String({ description: 'The state it led to.' }),
    source: Type.Enum(['user', 'flyd', 'proxy']),
    timestamp: Type.Integer({ description: 'Milliseconds since the epoch.' }),
    request: Type.Optional(
      Type.Unsafe<Record<string, unknown>>({
        type: 'object',
        additionalProperties: true,
        description:
          'How a program ended, as `exit_event`; how often it was started again; why something went wrong, as `error`.',
      }),
    ),
  },
  { title: 'MachineEvent' },
)

/** Kept as it was sent, so that it is shown as it is kept. */
export const ConfigView = Type.Unsafe<MachineConfig>({
  type: 'object',
  additionalProperties: true,
  description: 'As it was sent, with sizes filled in.',
})

export const MachineView = Type.Object(
  {
    id: Type.String({ description: '14 hexadecimal digits.' }),
    name: Type.String(),
    state: Type.Enum(Object.keys(machineStates) as (keyof typeof machineStates)[]),
    region: Type.String(),
    instance_id: Type.String({ description: 'Of its version: 26 characters that sort by time.' }),
    version: Type.String({ description: 'The same.' }),
    private_ip: Type.String({ description: 'In its private network; empty where there are none.' }),
    image_ref: Type.Object({
      registry: Type.String(),
      repository: Type.String(),
      tag: Type.String(),
      digest: Type.String({ description: 'Empty until the image was found.' }),
      labels: Type.Record(Type.String(), Type.String()),
    }),
    created_at: Time,
    updated_at: Time,
    cordoned: Type.Boolean({ description: 'The edge leads nothing to it.' }),
    config: Type.Optional(ConfigView),
    incomplete_config: Type.Optional(Type.Null()),
    events: Type.Optional(Type.Array(EventView, { description: 'The newest first.' })),
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
    nonce: Type.Optional(Type.String({ description: 'Of the lease that was asked for.' })),
    lease: Type.Optional(Type.Object({ description: Type.String(), expires_at: Type.Integer(), owner: Type.String() })),
    failure: Type.Optional(Type.String({ description: 'Why it did not start, or was given up.' })),
    app_name: Type.Optional(Type.String()),
  },
  { title: 'Machine' },
)

export interface ViewOptions {
  summary?: boolean
  includeLease?: boolean
  /** For whoever asked for the lease. */
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
    ...(!options.summary && {
      config: machine.config,
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

/** Until the image was found, what its reference says. */
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
