export interface Plan {
  name: string
  cpuKind: 'shared' | 'performance'
  cpus: number
  memoryMb: number
  /** The maximum number of client connections of the pooler. */
  poolerClients: number
  /** The pooler's server connections: the regular number and the reserve for waiting clients. */
  databaseConnections: number
  reserveConnections: number
}

export const plans: readonly Plan[] = [
  plan('basic', 'shared', 2, 1024, 200, 50, 10),
  plan('starter', 'shared', 2, 2048, 200, 50, 10),
  plan('launch', 'performance', 2, 8192, 500, 150, 30),
  plan('scale', 'performance', 4, 32_768, 1000, 300, 50),
  plan('Performance', 'performance', 8, 65_536, 1000, 300, 50),
]

function plan(
  name: string,
  cpuKind: Plan['cpuKind'],
  cpus: number,
  memoryMb: number,
  poolerClients: number,
  databaseConnections: number,
  reserveConnections: number,
): Plan {
  return { name, cpuKind, cpus, memoryMb, poolerClients, databaseConnections, reserveConnections }
}

/** Looks up a plan by name, ignoring case. */
export function findPlan(name: string): Plan | undefined {
  return plans.find((known) => known.name.toLowerCase() === name.toLowerCase())
}
