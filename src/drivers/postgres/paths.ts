import type { Home } from '../host/home.ts'

export interface ClusterPaths {
  /** Owned by the platform; the user of the cluster can only traverse it. */
  directory: string
  data: string
  tls: string
  pooler: string
  /** Configuration that the server reads and the platform writes. */
  configuration: string
  settings: string
  access: string
  identities: string
  /** What the platform needs to connect to the server. */
  connection: string
  /** The directory of the Unix socket. The server itself cannot see it. */
  sockets: string
  /** The directory of the socket to the source of an import, which the server sees if it subscribes to one. */
  sourceSockets: string
  /** Locked while any process of the server runs. */
  lock: string
  /** The pid of the service that started the server. */
  pid: string
  /** Names of supervised services and jobs. */
  service: string
  poolerService: string
  receiverService: string
  backupJob: string
  scrubJob: string
  copyJob: string
  drillPagesJob: string
  drillContentsJob: string
  upgradeJob: string
}

/** Derives every name from the id, so that a removal finds what an interrupted creation left behind. */
export function clusterPaths(home: Home, id: string): ClusterPaths {
  if (!/^[a-z0-9]{16}$/.test(id)) throw new Error(`not the id of a cluster: ${JSON.stringify(id)}`)
  const directory = `${home.path}/clusters/${id}`
  return {
    directory,
    data: `${directory}/data`,
    tls: `${directory}/tls`,
    pooler: `${directory}/pooler`,
    configuration: `${directory}/configuration`,
    settings: `${directory}/configuration/postgresql.conf`,
    access: `${directory}/configuration/pg_hba.conf`,
    identities: `${directory}/configuration/pg_ident.conf`,
    connection: `${directory}/connection.json`,
    sockets: `${home.run}/${id}`,
    sourceSockets: `${home.run}/source-${id}`,
    lock: `${directory}/lock`,
    pid: `${directory}/pid`,
    service: `pg-${id}`,
    poolerService: `pooler-${id}`,
    receiverService: `wal-${id}`,
    backupJob: `backup-${id}`,
    scrubJob: `scrub-${id}`,
    copyJob: `copy-${id}`,
    drillPagesJob: `drill-pages-${id}`,
    drillContentsJob: `drill-${id}`,
    upgradeJob: `upgrade-${id}`,
  }
}
