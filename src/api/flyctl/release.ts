import { Type } from 'typebox'
import {
  createRelease,
  findCurrentRelease,
  listReleasesOf,
  listReleaseTimesOf,
  updateRelease,
} from '../../actions/app/release.ts'
import { deploymentStrategies, isInProgress, type Release } from '../../model/app/release.ts'
import { notFound } from '../../model/errors.ts'
import { toRfc3339 } from '../../model/time.ts'
import { foreignApp, noApp, notAllowed } from '../app/error-text.ts'
import { ByApp } from '../app/params.ts'
import { readOnly } from '../error-text.ts'
import { textField } from '../http/access.ts'
import type { Route } from '../http/route.ts'
import { internalRoute } from './route.ts'

const ReleaseView = Type.Object(
  {
    id: Type.String(),
    version: Type.Integer({ description: 'Starts at 1 in each app.' }),
    stable: Type.Boolean(),
    in_progress: Type.Boolean(),
    status: Type.String({ description: '`pending`, `running`, `complete`, `failed`, ….' }),
    strategy: Type.Enum([...deploymentStrategies]),
    user: Type.String(),
    image_ref: Type.String(),
    created_at: Type.String({ format: 'date-time' }),
  },
  { title: 'FlyctlRelease', description: 'A deployment as recorded by the client.' },
)

export const flyctlReleaseRoutes: Route[] = [
  internalRoute({
    method: 'GET',
    path: '/api/v1/apps/{app_name}/releases',
    id: 'flyctlListReleases',
    summary: 'List the releases of an app, newest first',
    scope: 'read',
    params: ByApp,
    query: Type.Object({
      limit: Type.Optional(Type.Integer({ minimum: 1, description: 'The maximum number of releases.' })),
    }),
    status: 200,
    response: Type.Object({ releases: Type.Array(ReleaseView) }),
    errors: { 403: foreignApp, 404: noApp, 422: 'A parameter is not valid.' },
    run: async ({ ctx, params, query }) => ({
      releases: (await listReleasesOf(ctx, params.app_name, query.limit)).map(releaseView),
    }),
  }),
  internalRoute({
    method: 'GET',
    path: '/api/v1/apps/{app_name}/releases/current',
    id: 'flyctlGetCurrentRelease',
    summary: 'Show the newest release of an app',
    scope: 'read',
    params: ByApp,
    status: 200,
    response: ReleaseView,
    errors: { 403: foreignApp, 404: `${noApp} Or: it has no release yet.` },
    run: async ({ ctx, params }) => {
      const release = await findCurrentRelease(ctx, params.app_name)
      if (!release) throw notFound('release not found')
      return releaseView(release)
    },
  }),
  internalRoute({
    method: 'GET',
    path: '/api/v1/releases/all_current',
    id: 'flyctlListReleaseTimes',
    summary: 'Show the time of the latest release of each app',
    scope: 'read',
    status: 200,
    response: Type.Record(Type.String(), Type.String({ format: 'date-time' })),
    errors: {},
    run: async ({ ctx }) =>
      Object.fromEntries((await listReleaseTimesOf(ctx)).map(({ name, at }) => [name, toRfc3339(at)])),
  }),
  internalRoute({
    method: 'POST',
    path: '/api/v1/releases',
    id: 'flyctlCreateRelease',
    summary: 'Record a release',
    description: 'Releases are only recorded; machines are changed by their own operations.',
    scope: 'write',
    action: 'create',
    targets: ({ body }) => [{ app: textField(body, 'app_name') ?? '' }],
    body: Type.Object({
      app_name: Type.String(),
      image: Type.String(),
      strategy: Type.Optional(Type.Enum([...deploymentStrategies, ''])),
      definition: Type.Optional(Type.Unsafe<unknown>({})),
    }),
    status: 201,
    response: Type.Object({ release: ReleaseView }),
    errors: { 403: notAllowed, 404: noApp, 422: 'A field is missing or not valid.' },
    run: async ({ ctx, body }) => {
      const { app_name, image, strategy, definition } = body
      const release = await createRelease(ctx, app_name, { image, strategy: strategy || null, definition })
      return { release: releaseView(release) }
    },
  }),
  internalRoute({
    method: 'PATCH',
    path: '/api/v1/releases/{release_id}',
    id: 'flyctlUpdateRelease',
    summary: 'Update the status of a release',
    scope: 'write',
    params: Type.Object({ release_id: Type.String() }),
    body: Type.Object({ status: Type.String() }),
    status: 200,
    response: ReleaseView,
    errors: {
      403: readOnly,
      404: 'The release does not exist or is not visible to this token.',
      422: 'A field is missing or not valid.',
    },
    run: async ({ ctx, params, body }) => releaseView(await updateRelease(ctx, params.release_id, body.status)),
  }),
]

function releaseView(release: Release) {
  return {
    id: release.id,
    version: release.version,
    stable: release.status === 'complete',
    in_progress: isInProgress(release),
    status: release.status,
    strategy: release.strategy,
    user: release.createdBy,
    image_ref: release.image,
    created_at: toRfc3339(release.createdAt),
  }
}
