import { Type } from 'typebox'
import { createDeployToken } from '../../actions/account/token.ts'
import { createApp, deleteApp, getApp, listAppsOf } from '../../actions/app/app.ts'
import {
  AppDetails,
  AppPage,
  type AppSummary,
  appStatus,
  CreateApp,
  CreatedApp,
  type CreatedAppRow,
} from '../../model/app/app.ts'
import { networkPrefix } from '../../model/network.ts'
import type { PlatformSettings } from '../../model/settings.ts'
import { toMillis } from '../../model/time.ts'
import { organizationView } from '../account/org.ts'
import { noOrganization, readOnly } from '../error-text.ts'
import { textField } from '../http/access.ts'
import { type Route, route } from '../http/route.ts'
import { foreignApp, noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'

export const appRoutes: Route[] = [
  route({
    method: 'POST',
    path: '/v1/apps',
    id: 'createApp',
    tag: 'Apps',
    summary: 'Create an app',
    description:
      'An app with its own `network` is isolated from the other apps of its organization on the private network.',
    scope: 'write',
    targets: ({ body }) => [{ newAppIn: textField(body, 'org_slug') }],
    body: CreateApp,
    status: 201,
    response: CreatedApp,
    errors: {
      403: readOnly,
      404: noOrganization,
      422: 'A field is missing or not valid, or the name is taken (`status` is then `name_taken`).',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, body }) => createdView(await createApp(ctx, body)),
  }),
  route({
    method: 'GET',
    path: '/v1/apps',
    id: 'listApps',
    tag: 'Apps',
    summary: 'List the apps of an organization',
    description: 'Ordered by name. Without `limit`, one response contains all apps.',
    scope: 'read',
    targets: 'none',
    query: Type.Object({
      org_slug: Type.String({ description: 'The organization to list apps for.' }),
      app_role: Type.Optional(Type.String({ description: 'Only apps with this role; Berth assigns none.' })),
      limit: Type.Optional(
        Type.Integer({ minimum: 1, maximum: 1000, description: 'The maximum number of apps in one response.' }),
      ),
      cursor: Type.Optional(Type.String({ description: '`next_cursor` of the previous page.' })),
    }),
    status: 200,
    response: AppPage,
    errors: {
      404: noOrganization,
      422: '`org_slug` is missing, or a parameter is not valid.',
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, query }) => {
      const { total, apps, nextCursor } = await listAppsOf(ctx, query)
      return { total_apps: total, apps: apps.map(itemView), ...(nextCursor ? { next_cursor: nextCursor } : {}) }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}',
    id: 'getApp',
    tag: 'Apps',
    summary: 'Show an app',
    scope: 'read',
    params: ByApp,
    status: 200,
    response: AppDetails,
    errors: { 403: foreignApp, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => appView(await getApp(ctx, params.app_name), ctx.settings),
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}',
    id: 'deleteApp',
    tag: 'Apps',
    summary: 'Delete an app',
    description: 'The name is free immediately; the resources of the app are removed in the background.',
    scope: 'write',
    params: ByApp,
    query: Type.Object({
      force: Type.Optional(
        Type.Enum(['true', 'false', '1', '0'], {
          description: 'Stop all machines and delete the app immediately.',
          refusal: 'force must be true, false, 1 or 0',
        }),
      ),
    }),
    status: 202,
    errors: {
      403: notAllowed,
      404: noApp,
      422: 'Machines are still running and `force` was not given; the message names them.',
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => {
      await deleteApp(ctx, params.app_name, query.force === 'true' || query.force === '1')
    },
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/deploy_token',
    id: 'createDeployToken',
    tag: 'Apps',
    summary: 'Create a token for one app',
    description:
      'The token has the permissions of a token of the organization, limited to this app. It is revoked when the app is deleted. It is only shown in this response.',
    scope: 'write',
    params: ByApp,
    body: Type.Object({
      expiry: Type.Optional(Type.String({ description: 'A duration such as `24h`; 90 days when omitted.' })),
    }),
    ignoreNulls: true,
    status: 200,
    response: Type.Object({ token: Type.String() }, { title: 'DeployToken' }),
    errors: { 403: notAllowed, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { token } = await createDeployToken(ctx, params.app_name, body.expiry)
      return { token }
    },
  }),
]

function createdView(app: CreatedAppRow) {
  return {
    id: app.id,
    created_at: toMillis(app.createdAt),
    name: app.name,
    status: 'pending',
    network: app.network,
    organization: organizationView({ name: app.orgName, slug: app.orgSlug, numericId: app.orgNumericId }),
    internal_numeric_id: app.numericId,
  }
}

function appView(app: AppSummary, settings: PlatformSettings) {
  return {
    ...itemView(app),
    ...(app.networkNumber ? { network_cidr: networkPrefix(settings.homeNumber, app.networkNumber) } : {}),
    cname_target: new URL(settings.appUrl(app.name)).hostname,
  }
}

function itemView(app: AppSummary) {
  return {
    id: app.id,
    name: app.name,
    machine_count: app.machineCount,
    volume_count: app.volumeCount,
    network: app.network,
    status: appStatus(app),
    organization: organizationView({ name: app.orgName, slug: app.orgSlug, numericId: app.orgNumericId }),
    internal_numeric_id: app.numericId,
  }
}
