import type { Query } from '../db.ts'

/** What the edge knows of a cluster that machines can use. */
export interface ClusterRoute {
  id: string
  /** Its addresses follow from it. */
  number: number
  directPort: number
  poolerPort: number
  /** The private networks that know it: the usual one of its organization and those of apps that are attached to it. */
  networks: number[]
}

export async function listClusterRoutes(db: Query): Promise<ClusterRoute[]> {
  const { rows } = await db.query<ClusterRoute>({
    name: 'cluster-routes',
    text: `select cluster.id, cluster.number, direct_port as "directPort", pooler_port as "poolerPort", networks.numbers as networks
           from cluster,
             lateral (select array_agg(network.number order by network.number) as numbers from network
               where network.org_id = cluster.org_id and (network.name = 'default' or network.name in (
                 select app.network from attachment join app on app.id = attachment.app_id
                 where attachment.cluster_id = cluster.id and app.state = 'active'))) networks
           where cluster.state = 'ready' and not scratch and direct_port is not null and pooler_port is not null
             and networks.numbers is not null
           order by cluster.number`,
  })
  return rows
}
