import { badRequest } from '../errors.ts'

export interface Guest {
  cpu_kind: 'shared' | 'performance'
  cpus: number
  memory_mb: number
  /** The limit up to which memory can be added while the machine runs. */
  max_memory_mb?: number
}

const memoryStepMb = 256

/** The allowed CPU counts, and the memory per CPU in megabytes. */
const kinds = {
  shared: { cpus: [1, 2, 4, 6, 8], minMb: 256, maxMb: 2048 },
  performance: { cpus: [1, 2, 4, 6, 8, 10, 12, 14, 16], minMb: 2048, maxMb: 8192 },
} as const

const preset = /^(?:(shared)-cpu|(performance))-(\d{1,2})x$/

/** Resolves the guest size from explicit sizes or a preset; the smallest size is the default. */
export function readGuest(guest: Partial<Guest> | undefined, size: string | undefined): Guest {
  if (size !== undefined && guest !== undefined) throw badRequest('config.size and config.guest are mutually exclusive')
  const requested: Partial<Guest> | undefined = size === undefined ? guest : readPreset(size)
  const kind = requested?.cpu_kind ?? 'shared'
  const { cpus: counts, minMb, maxMb } = kinds[kind]
  const cpus = requested?.cpus ?? 1
  if (!(counts as readonly number[]).includes(cpus)) {
    throw badRequest(`config.guest.cpus must be one of ${counts.join(', ')} for ${kind} CPUs`)
  }
  const memory = requested?.memory_mb ?? minMb * cpus
  if (memory < minMb * cpus || memory > maxMb * cpus || memory % memoryStepMb !== 0) {
    throw badRequest(
      `config.guest.memory_mb must be from ${minMb * cpus} to ${maxMb * cpus} in steps of ${memoryStepMb} for ${cpus} ${kind} CPU${cpus === 1 ? '' : 's'}`,
    )
  }
  const maxMemory = requested?.max_memory_mb || undefined // some clients send every field and mean none by 0
  if (maxMemory !== undefined && (maxMemory < memory || maxMemory > maxMb * cpus || maxMemory % memoryStepMb !== 0)) {
    throw badRequest(`config.guest.max_memory_mb must be from ${memory} to ${maxMb * cpus} in steps of ${memoryStepMb}`)
  }
  return { cpu_kind: kind, cpus, memory_mb: memory, ...(maxMemory && { max_memory_mb: maxMemory }) }
}

function readPreset(size: string): Pick<Guest, 'cpu_kind' | 'cpus'> {
  const [, shared, , count] = preset.exec(size) ?? []
  const kind = shared ? 'shared' : 'performance'
  if (count === undefined || !(kinds[kind].cpus as readonly number[]).includes(Number(count))) {
    throw badRequest('config.size must be a preset such as shared-cpu-1x or performance-2x')
  }
  return { cpu_kind: kind, cpus: Number(count) }
}
