import { isOperator, requireWriter } from '../../model/account/caller.ts'
import { chooseRegion, isRegionAlias } from '../../model/account/region.ts'
import type { Caller } from '../../model/account/token.ts'
import { type MachineDetails, machineStates } from '../../model/app/machine.ts'
import { checkConfig, type KeptConfig } from '../../model/app/machine-config-check.ts'
import { machineNamePattern, newMachineName } from '../../model/app/machine-name.ts'
import type { CreateMachine, UpdateMachine } from '../../model/app/machine-request.ts'
import { badRequest, conflict, invalid, notFound, preconditionFailed } from '../../model/errors.ts'
import { newMachineId, newUlid } from '../../model/ids.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import {
  getMachineApp,
  getVisibleMachine,
  listMachines,
  lockMachine,
  type MachineApp,
  type MachineFilter,
  machineNotFound,
} from '../../store/app/machine.ts'
import { insertVersion, keepStopped, launchMachine, setConfig, setLease } from '../../store/app/machine-command.ts'
import { insertMachine, transactionWithSlot } from '../../store/app/machine-create.ts'
import { sealSecretsForMachine } from '../../store/app/secret.ts'
import { attachVolume } from '../../store/app/volume.ts'
import type { Tx } from '../../store/db.ts'
import { transition } from '../../store/transition.ts'
import { enqueue } from '../../store/work.ts'
import type { Context } from '../context.ts'
import { requireCommand } from './machine-command.ts'
import { changeLeasedMachine, type MachineKey, newNonce } from './machine-lease.ts'

export async function createMachine(ctx: Context, appName: string, input: CreateMachine): Promise<MachineDetails> {
  const { caller, app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  requireWriter(caller)
  const config = checkConfig(input.config, isOperator(ctx, caller))
  const region = chooseMachineRegion(ctx.settings, input.region)
  const name = checkName(input.name)
  if (config.guest.memory_mb > ctx.settings.memoryMb) throw withoutHost()
  return transactionWithSlot(ctx.db, (tx) => create(tx, ctx, { caller, app, config, region, name, input }))
}

interface Creation {
  caller: Caller
  app: MachineApp
  config: KeptConfig
  region: string
  name: string | undefined
  input: CreateMachine
}

async function create(
  tx: Tx,
  ctx: Context,
  { caller, app, config, region, name, input }: Creation,
): Promise<MachineDetails> {
  const id = newMachineId()
  const instanceId = newUlid()
  const secrets = await takeSecrets(tx, ctx, app, input)
  // A standby starts when the machine it stands by for fails.
  const isLaunched = !input.skip_launch && !config.standbys?.length
  const inserted = await insertMachine(tx, app, {
    id,
    name: name ?? newMachineName(),
    region,
    instanceId,
    config,
    cordoned: input.skip_service_registration ?? false,
    wanted: isLaunched,
    ...secrets,
  })
  if (inserted.is === 'app deleted') throw notFound('app not found')
  if (inserted.is === 'no free slot') throw withoutHost()
  if (inserted.is === 'name taken') {
    if (name === undefined) return create(tx, ctx, { caller, app, config, region, name, input })
    throw conflict(
      `already_exists: unique machine name violation, machine ID ${inserted.by} already exists with name "${name}"`,
    )
  }
  await attachMounts(tx, app.id, id, config)
  if (input.lease_ttl) {
    await setLease(tx, id, { nonce: newNonce(), owner: caller.tokenId, description: '', seconds: input.lease_ttl })
  }
  if (isLaunched) await launchMachine(tx, { id, config }, 'launch')
  else await keepStopped(tx, id)
  const made = await lockMachine(tx, id)
  // The response shows the created machine; later states are reported by `wait` and events.
  return { ...made!, state: 'created' }
}

export async function getMachine(ctx: Context, appName: string, id: string): Promise<MachineDetails> {
  return (await getVisibleMachine(ctx.db, ctx.tokenHash, appName, id)).machine
}

export async function listMachinesOf(ctx: Context, appName: string, filter: MachineFilter): Promise<MachineDetails[]> {
  const { app } = await getMachineApp(ctx.db, ctx.tokenHash, appName)
  return listMachines(ctx.db, app.id, filter)
}

/** Replaces the whole config with a new version. */
export async function updateMachine(ctx: Context, key: MachineKey, input: UpdateMachine): Promise<MachineDetails> {
  return changeLeasedMachine(ctx, key, async (tx, machine, { app, caller }) => {
    const { id } = machine
    if (machine.state === 'destroyed') throw machineNotFound()
    const config = checkConfig(input.config, isOperator(ctx, caller))
    refuseChanges(machine, input)
    requireCommand(machine, 'update')
    if (config.guest.memory_mb > ctx.settings.memoryMb) {
      throw conflict(
        'aborted: could not reserve resource for machine: insufficient memory available to fulfill request',
      )
    }
    const secrets = await takeSecrets(tx, ctx, app, input)
    const instanceId = newUlid()
    await insertVersion(tx, id, {
      instanceId,
      config,
      wanted: machine.wanted && !input.skip_launch,
      keepsImage: false,
      ...secrets,
    })
    await attachMounts(tx, app.id, id, config)
    if (input.lease_ttl) {
      const held = machine.lease?.nonce ?? newNonce()
      await setLease(tx, id, { nonce: held, owner: caller.tokenId, description: '', seconds: input.lease_ttl })
    }
    await transition(tx, 'machine', machineStates, id, 'update')
    return (await lockMachine(tx, id))!
  })
}

function refuseChanges(machine: MachineDetails, input: UpdateMachine): void {
  if (input.current_version && input.current_version !== machine.instanceId) {
    throw conflict('aborted: machine update failed due to concurrent update')
  }
  if (input.name && input.name !== machine.name) throw badRequest('name cannot be changed')
  if (input.region && !input.region.split(',').includes(machine.region)) throw badRequest('region cannot be changed')
}

async function takeSecrets(tx: Tx, ctx: Context, app: MachineApp, input: CreateMachine) {
  if (input.skip_secrets) return { secrets: null, secretsVersion: 0 }
  const { version, sealed } = await sealSecretsForMachine(tx, app.id, ctx.encryptionKey)
  if (input.min_secrets_version && version < input.min_secrets_version) {
    throw preconditionFailed(
      `failed_precondition: the secrets are at version ${version}, and ${input.min_secrets_version} was asked for`,
    )
  }
  return { secrets: sealed, secretsVersion: version }
}

async function attachMounts(tx: Tx, appId: string, machineId: string, config: KeptConfig): Promise<void> {
  for (const mount of config.mounts ?? []) {
    const { id } = await attachVolume(tx, {
      appId,
      machineId,
      ...(mount.volume ? { volumeId: mount.volume } : { name: mount.name! }),
    })
    mount.volume = id
    // Auto-extend needs more frequent checks of the volume.
    if (mount.extend_threshold_percent) await enqueue(tx, 'volume', id)
  }
  // Mounts by name now have the id of their volume.
  if (config.mounts?.length) await setConfig(tx, machineId, config)
}

function checkName(name: string | undefined): string | undefined {
  if (!name) return undefined
  if (machineNamePattern.test(name)) return name
  throw badRequest(
    'name must be 1 to 63 letters, digits, dashes, dots and underscores, starting and ending with a letter or digit',
  )
}

/** The request may list several regions and continents. */
export function chooseMachineRegion(settings: PlatformSettings, asked: string | undefined): string {
  const requested = (asked ?? '')
    .split(',')
    .map((request) => request.trim())
    .filter(Boolean)
  if (requested.length === 0) requested.push(settings.defaultRegion)
  const chosen = requested.map((request) => chooseRegion(settings, isRegionAlias(request) ? undefined : request))
  const fit = chosen.find((region) => typeof region === 'string')
  if (fit !== undefined) return fit as string
  if (settings.regions === null) throw badRequest((chosen[0] as Error).message)
  throw invalid((chosen[0] as Error).message, { status: 'insufficient_capacity' })
}

export function withoutHost() {
  return invalid('could not find a candidate host', { status: 'insufficient_capacity' })
}
