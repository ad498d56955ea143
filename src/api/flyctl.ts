import { flyctlDatabaseRoutes } from './flyctl-database.ts'
import { flyctlLogRoutes } from './flyctl-log.ts'
import { flyctlOrgRoutes } from './flyctl-org.ts'
import { flyctlPostgresRoutes } from './flyctl-postgres.ts'
import { flyctlReleaseRoutes } from './flyctl-release.ts'
import type { Route } from './route.ts'

/** What flyctl asks for besides the documented interface. */
export const flyctlRoutes: Route[] = [
  ...flyctlOrgRoutes,
  ...flyctlPostgresRoutes,
  ...flyctlDatabaseRoutes,
  ...flyctlReleaseRoutes,
  ...flyctlLogRoutes,
]
