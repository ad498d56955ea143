// flyctl reports builds to the platform, also when an image only has to be found in its registry. Nothing is built here.
import { Type } from 'typebox'
import { getOrg } from '../../actions/account/org.ts'
import { checkWritableApp } from '../../actions/app/app.ts'
import { getCaller } from '../../actions/context.ts'
import { noBuilderReason } from '../../model/app/unsupported.ts'
import { invalid } from '../../model/errors.ts'
import { foreignApp, noApp } from '../app/error-text.ts'
import { noOrganization } from '../error-text.ts'
import type { Route } from '../http/route.ts'
import { InternalOrg, internalRoute } from './route.ts'

const BuildView = Type.Object(
  {
    id: Type.Integer({ description: 'Always 0: builds are not recorded.' }),
    status: Type.String(),
    wallclock_time_ms: Type.Integer(),
  },
  { title: 'FlyctlBuild' },
)
const errors = { 403: foreignApp, 404: noApp, 422: 'A field is missing or not valid.' }
const noBuilder = { 422: 'Any valid request: this platform does not build images.' }

export const flyctlBuildRoutes: Route[] = [
  internalRoute({
    method: 'POST',
    path: '/api/v1/builds',
    id: 'flyctlCreateBuild',
    summary: 'Announce a build that the client makes',
    scope: 'write',
    body: Type.Object({ app_name: Type.String() }),
    status: 200,
    response: BuildView,
    errors,
    run: async ({ ctx, body }) => {
      await checkWritableApp(ctx, body.app_name)
      return { id: 0, status: 'started', wallclock_time_ms: 0 }
    },
  }),
  internalRoute({
    method: 'POST',
    path: '/api/v1/builds/finish',
    id: 'flyctlFinishBuild',
    summary: 'Report that the client has finished a build',
    scope: 'write',
    body: Type.Object({
      app_name: Type.String(),
      status: Type.String({ maxLength: 64, description: '`completed` or `failed`.' }),
    }),
    status: 200,
    response: BuildView,
    errors,
    run: async ({ ctx, body }) => {
      await checkWritableApp(ctx, body.app_name)
      return { id: 0, status: body.status, wallclock_time_ms: 0 }
    },
  }),
  internalRoute({
    method: 'POST',
    path: '/api/v1/builds/depot_builder',
    id: 'flyctlEnsureDepotBuilder',
    summary: 'Refused: this platform has no builders',
    scope: 'write',
    status: 200,
    errors: noBuilder,
    run: async ({ ctx }) => {
      await getCaller(ctx)
      throw invalid(noBuilderReason)
    },
  }),
  internalRoute({
    method: 'POST',
    path: '/api/v1/organizations/{org_slug}/builders',
    id: 'flyctlCreateBuilder',
    summary: 'Refused: this platform has no builders',
    scope: 'write',
    params: InternalOrg,
    status: 201,
    errors: { 404: noOrganization, ...noBuilder },
    run: async ({ ctx, params }) => {
      await getOrg(ctx, await getCaller(ctx), params.org_slug)
      throw invalid(noBuilderReason)
    },
  }),
]
