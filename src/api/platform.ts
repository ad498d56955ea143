import { appRoutes } from './app.ts'
import { orgRoutes } from './org.ts'
import type { Route } from './route.ts'
import { tokenRoutes } from './token.ts'

/** Everything the platform address can be asked for. */
export const platformRoutes: Route[] = [...appRoutes, ...orgRoutes, ...tokenRoutes]

/** Everything the sandbox address can be asked for. */
export const sandboxRoutes: Route[] = []
