import type { Route } from '../http/route.ts'
import { flyctlBuildRoutes } from './build.ts'
import { flyctlDatabaseRoutes } from './database.ts'
import { flyctlLogRoutes } from './log.ts'
import { flyctlOrgRoutes } from './org.ts'
import { flyctlPostgresRoutes } from './postgres.ts'
import { flyctlReleaseRoutes } from './release.ts'

/** The routes that flyctl uses besides the documented interface. */
export const flyctlRoutes: Route[] = [
  ...flyctlOrgRoutes,
  ...flyctlPostgresRoutes,
  ...flyctlDatabaseRoutes,
  ...flyctlReleaseRoutes,
  ...flyctlBuildRoutes,
  ...flyctlLogRoutes,
]
