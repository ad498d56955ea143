export interface Plan {
  name: string
  cpuKind: 'shared' | 'performance'
  cpus: number
  memoryMb: number
  /** How many clients the pooler holds at once. */
  poolerClients: number
  /** How many connections to the database the pooler opens, and how many more while clients wait for one. */
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

/** Clients write the names in any case; the answer carries the name as it is listed. */
export function findPlan(name: string): Plan | undefined {
  return plans.find((known) => known.name.toLowerCase() === name.toLowerCase())
}
