import type { MachineConfig } from './machine-config.ts'

export interface MachineLimits {
  memoryMb: number
  swapMb?: number
  cpus: number
  pids: number
}

const defaultMemoryMb = 256
/** High enough for any server, low enough to stop a fork bomb. */
const maxPidsPerCpu = 2_048

export function machineLimits({ guest, init }: MachineConfig): MachineLimits {
  const cpus = guest?.cpus ?? 1
  const swapMb = init?.swap_size_mb
  return {
    memoryMb: guest?.memory_mb ?? defaultMemoryMb,
    ...(swapMb !== undefined && { swapMb }),
    cpus,
    pids: cpus * maxPidsPerCpu,
  }
}
