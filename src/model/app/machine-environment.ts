import type { ImageConfig } from '../image.ts'
import { machineAddress } from '../network.ts'
import type { Machine } from './machine.ts'
import { machineLimits } from './machine-limits.ts'
import { getSlot, type SpecContext, SpecError } from './machine-spec-context.ts'

export const defaultPath = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

/** Builds the environment of the machine's program; later entries override earlier ones. */
export function machineEnvironment(machine: Machine, image: ImageConfig, context: SpecContext): Record<string, string> {
  const { config } = machine
  const program = config.processes?.[0]
  const fields = fieldRefs(machine, context)
  return {
    PATH: defaultPath,
    ...image.env,
    PRIMARY_REGION: machine.region,
    ...config.env,
    ...program?.env,
    ...(program?.ignore_app_secrets ? {} : context.secrets),
    ...namedSecrets(program?.secrets ?? [], context.secrets),
    ...Object.fromEntries((program?.env_from ?? []).map(({ env_var, field_ref }) => [env_var, fields[field_ref]])),
    FLY_APP_NAME: fields.app_name,
    FLY_MACHINE_ID: fields.id,
    FLY_ALLOC_ID: fields.id,
    FLY_REGION: fields.region,
    FLY_PUBLIC_IP: '',
    FLY_IMAGE_REF: fields.image,
    FLY_MACHINE_VERSION: fields.version,
    FLY_PRIVATE_IP: fields.private_ip,
    FLY_PROCESS_GROUP: config.metadata?.fly_process_group ?? config.env?.FLY_PROCESS_GROUP ?? 'app',
    FLY_VM_MEMORY_MB: String(machineLimits(config).memoryMb),
  }
}

/** The values that `field_ref` of a configuration can name. */
function fieldRefs(machine: Machine, { appName, homeNumber, hasPrivateNetworks }: SpecContext) {
  return {
    id: machine.id,
    version: machine.instanceId,
    app_name: appName,
    private_ip: hasPrivateNetworks ? machineAddress(homeNumber, machine.networkNumber, getSlot(machine)) : '',
    region: machine.region,
    image: imageText(machine),
  }
}

function namedSecrets(wanted: { env_var: string; name?: string }[], secrets: Record<string, string>) {
  return Object.fromEntries(
    wanted.map(({ env_var, name }) => {
      // Clients send an empty name when the secret is called like the variable.
      const secret = name || env_var
      const value = secrets[secret]
      if (value === undefined)
        throw new SpecError(`config.processes names the secret ${secret}, which the app does not have`)
      return [env_var, value]
    }),
  )
}

function imageText({ config, image }: Machine): string {
  return image?.registry
    ? `${image.registry}/${image.repository}${image.tag && `:${image.tag}`}@${image.digest}`
    : config.image
}
