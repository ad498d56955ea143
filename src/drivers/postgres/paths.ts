import type { Home } from '../host/home.ts'

export interface ClusterPaths {
  /** Belongs to the platform; the cluster itself may only pass through it. */
  directory: string
  data: string
  tls: string
  pooler: string
  settings: string
  access: string
  /** The gate of the platform's own access: who may enter it may connect as anybody. */
  sockets: string
  service: string
  poolerService: string
}

/** Everything of a cluster has a name that follows from its id, so that a removal finds what a crash left behind. */
export function clusterPaths(home: Home, id: string): ClusterPaths {
  if (!/^[a-z0-9]{16}$/.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
  const directory = `${home.path}/clusters/${id}`
  return {
    directory,
    data: `${directory}/data`,
    tls: `${directory}/tls`,
    pooler: `${directory}/pooler`,
    settings: `${directory}/postgresql.conf`,
    access: `${directory}/pg_hba.conf`,
    sockets: `${home.run}/${id}`,
    service: `pg-${id}`,
    poolerService: `pooler-${id}`,
  }
}
