import { badRequest } from '../errors.ts'

export interface Guest {
  cpu_kind: 'shared' | 'performance'
  cpus: number
  memory_mb: number
  /** What it can be given while it runs. */
  max_memory_mb?: number
}

const memoryStep = 256

/** For each CPU. */
const kinds = {
  shared: { cpus: [1, 2, 4, 6, 8], least: 256, most: 2048 },
  performance: { cpus: [1, 2, 4, 6, 8, 10, 12, 14, 16], least: 2048, most: 8192 },
} as const

const preset = /^(?:(shared)-cpu|(performance))-(\d{1,2})x$/

/** What a machine gets: the sizes given, the preset named, or the smallest there is. */
export function readGuest(guest: Partial<Guest> | undefined, size: string | undefined): Guest {
  if (size !== undefined && guest !== undefined) throw badRequest('config.size and config.guest exclude each other')
  const asked: Partial<Guest> | undefined = size === undefined ? guest : readPreset(size)
  const kind = asked?.cpu_kind ?? 'shared'
  const { cpus: counts, least, most } = kinds[kind]
  const cpus = asked?.cpus ?? 1
  if (!(counts as readonly number[]).includes(cpus)) {
    throw badRequest(`config.guest.cpus must be one of ${counts.join(', ')} for ${kind} CPUs`)
  }
  const memory = asked?.memory_mb ?? least * cpus
  if (memory < least * cpus || memory > most * cpus || memory % memoryStep !== 0) {
    throw badRequest(
      `config.guest.memory_mb must be from ${least * cpus} to ${most * cpus} in steps of ${memoryStep} for ${cpus} ${kind} CPU${cpus === 1 ? '' : 's'}`,
    )
  }
  const maxMemory = asked?.max_memory_mb || undefined // some clients send every field, and 0 for none
  if (maxMemory !== undefined && (maxMemory < memory || maxMemory > most * cpus || maxMemory % memoryStep !== 0)) {
    throw badRequest(
      `config.guest.max_memory_mb must be from ${memory} to ${most * cpus} in steps of ${memoryStep}, which is what the machine can have`,
    )
  }
  return { cpu_kind: kind, cpus, memory_mb: memory, ...(maxMemory && { max_memory_mb: maxMemory }) }
}

function readPreset(size: string): Pick<Guest, 'cpu_kind' | 'cpus'> {
  const [, shared, , count] = preset.exec(size) ?? []
  const kind = shared ? 'shared' : 'performance'
  if (count === undefined || !(kinds[kind].cpus as readonly number[]).includes(Number(count))) {
    throw badRequest('config.size must be one such as shared-cpu-1x or performance-2x')
  }
  return { cpu_kind: kind, cpus: Number(count) }
}
