import type { Query } from '../db.ts'

/** The edge's view of a cluster that machines can reach. */
export interface ClusterRoute {
  id: string
  /** Its private addresses derive from it. */
  number: number
  directPort: number
  poolerPort: number
  /** The private networks that can reach it: the default network of its organization and those of attached apps. */
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
