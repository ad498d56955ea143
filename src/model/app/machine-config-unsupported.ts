import { badRequest } from '../errors.ts'
import type { SentConfig } from './machine-config.ts'

type Fields = Record<string, unknown>

/** Where each field is in the config, and the reason or the alternative that the error gives. */
const unsupported: [path: string, reason: string][] = [
  ['volumes', 'mount a volume with config.mounts'],
  ['cache_drive', 'mount a volume with config.mounts'],
  ['guest.gpus', 'there are no GPUs'],
  ['guest.gpu_kind', 'there are no GPUs'],
  ['guest.kernel_args', 'machines share the kernel of the host'],
  ['init.kernel_args', 'machines share the kernel of the host'],
  ['guest.host_dedication_id', 'there is one host'],
  ['restart.gpu_bid_price', 'there are no GPUs'],
  ['spot', 'there are no spot prices'],
  ['statics', 'serve the files from the program'],
  ['dns.dns_forward_rules', 'machines use the name servers of the host'],
]

/** Rejects fields that cannot be ignored, because the machine would not be the one that was asked for. */
export function rejectUnsupported(config: SentConfig): void {
  for (const [path, reason] of unsupported) {
    if (!isEmpty(valueAt(config, path))) throw badRequest(`config.${path} is not possible here: ${reason}`)
  }
  if (config.processes && config.processes.length > 1) {
    throw badRequest('config.processes has more than one entry; run several programs with config.containers')
  }
  refuseImageFiles('config', config.files)
  for (const [index, { files }] of (config.containers ?? []).entries())
    refuseImageFiles(`config.containers.${index}`, files)
}

function refuseImageFiles(field: string, files: Fields[] = []): void {
  for (const [index, file] of files.entries()) {
    if (file.image_config)
      throw badRequest(`${field}.files.${index}.image_config is not possible here: give raw_value or secret_name`)
  }
}

function valueAt(config: SentConfig, path: string): unknown {
  return path.split('.').reduce<unknown>((value, key) => (value as Fields | null | undefined)?.[key], config)
}

function isEmpty(value: unknown): boolean {
  return !value || (Array.isArray(value) && value.length === 0)
}
