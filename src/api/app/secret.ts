import { Type } from 'typebox'
import {
  changeSecrets,
  deleteSecret,
  getSecret,
  listSecretsOf,
  type SecretQuery,
  type ShownSecret,
  setSecret,
} from '../../actions/app/secret.ts'
import { toRfc3339 } from '../../model/time.ts'
import { type Route, route } from '../http/route.ts'
import { noApp, notAllowed } from './error-text.ts'
import { ByApp } from './params.ts'

const ByAppAndName = Type.Object({
  ...ByApp.properties,
  secret_name: Type.String({ description: 'The name of the secret.' }),
})

const secretFields = {
  name: Type.String(),
  digest: Type.String({ description: 'Equal for equal values of one app; does not reveal the value.' }),
  created_at: Type.String({ format: 'date-time' }),
  updated_at: Type.String({ format: 'date-time' }),
}
export const versionFields = {
  version: Type.Integer({ description: 'Increases with every change of the secrets of the app.' }),
  Version: Type.Integer({ description: 'Alias of `version`, for clients with this spelling.' }),
}
const SecretView = Type.Object(
  { ...secretFields, value: Type.Optional(Type.String({ description: 'Only with `show_secrets`.' })) },
  { title: 'Secret' },
)

const Version = Type.Integer({ minimum: 0, description: 'Fail when the secrets are older than this version.' })
export const versionQuery = {
  min_version: Type.Optional(Version),
  version: Type.Optional({ ...Version, description: 'Alias of `min_version`.' }),
}
const Query = Type.Object({
  ...versionQuery,
  show_secrets: Type.Optional(
    Type.Enum(['true', 'false', '1', '0'], {
      description: 'Include the values; not allowed with a read-only token.',
      refusal: 'show_secrets must be true, false, 1 or 0',
    }),
  ),
})

export const older = 'The secrets of the app are older than `min_version`.'
const nameRules = 'Names have at most 128 letters, digits and underscores and do not start with a digit.'

export const secretRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/secrets',
    id: 'listSecrets',
    tag: 'Secrets',
    summary: 'List the secrets of an app by name',
    scope: 'read',
    params: ByApp,
    query: Query,
    status: 200,
    response: Type.Object({ secrets: Type.Array(SecretView) }, { title: 'SecretList' }),
    errors: { 403: notAllowed, 404: noApp, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) => ({
      secrets: (await listSecretsOf(ctx, params.app_name, readQuery(query))).map(secretView),
    }),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/secrets',
    id: 'changeSecrets',
    tag: 'Secrets',
    summary: 'Set and remove secrets of an app',
    description:
      'All changes are applied or none. Machines keep the values they were created with until they are updated. Values are stored encrypted.',
    scope: 'write',
    action: 'write',
    params: ByApp,
    body: Type.Object({
      values: Type.Record(Type.String(), Type.Unsafe<string | null>({ type: ['string', 'null'] }), {
        description: `Values by name; null removes a secret, even if it does not exist. ${nameRules}`,
        examples: [{ API_KEY: 'abc' }],
      }),
    }),
    status: 200,
    response: Type.Object({ secrets: Type.Array(SecretView), ...versionFields }, { title: 'ChangedSecrets' }),
    errors: { 403: notAllowed, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { version, secrets } = await changeSecrets(ctx, params.app_name, body.values)
      return { secrets: secrets.map(secretView), ...versionView(version) }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/apps/{app_name}/secrets/{secret_name}',
    id: 'getSecret',
    tag: 'Secrets',
    summary: 'Show a secret',
    scope: 'read',
    params: ByAppAndName,
    query: Query,
    status: 200,
    response: SecretView,
    errors: { 403: notAllowed, 404: `${noApp} Or: it has no such secret.`, 412: older },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, query }) =>
      secretView(await getSecret(ctx, params.app_name, params.secret_name, readQuery(query))),
  }),
  route({
    method: 'POST',
    path: '/v1/apps/{app_name}/secrets/{secret_name}',
    id: 'setSecret',
    tag: 'Secrets',
    summary: 'Set one secret',
    scope: 'write',
    action: 'write',
    params: ByAppAndName,
    body: Type.Object({ value: Type.String({ description: 'At most 65,536 bytes.' }) }),
    status: 201,
    response: Type.Object({ ...secretFields, ...versionFields }, { title: 'ChangedSecret' }),
    errors: { 403: notAllowed, 404: noApp },
    wrongTypeStatus: 400,
    run: async ({ ctx, params, body }) => {
      const { version, secret } = await setSecret(ctx, params.app_name, params.secret_name, body.value)
      return { ...secretView(secret), ...versionView(version) }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/apps/{app_name}/secrets/{secret_name}',
    id: 'deleteSecret',
    tag: 'Secrets',
    summary: 'Remove a secret',
    scope: 'write',
    params: ByAppAndName,
    status: 200,
    response: Type.Object(versionFields, { title: 'SecretsVersion' }),
    errors: { 403: notAllowed, 404: `${noApp} Or: it has no such secret.` },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => versionView(await deleteSecret(ctx, params.app_name, params.secret_name)),
  }),
]

function readQuery(query: VersionQuery & { show_secrets?: string }): SecretQuery {
  return { show: query.show_secrets === 'true' || query.show_secrets === '1', minVersion: readMinVersion(query) }
}

export interface VersionQuery {
  min_version?: number
  version?: number
}

export function readMinVersion(query: VersionQuery): number {
  return query.min_version ?? query.version ?? 0
}

function secretView(secret: ShownSecret) {
  return {
    name: secret.name,
    digest: secret.digest,
    created_at: toRfc3339(secret.createdAt),
    updated_at: toRfc3339(secret.updatedAt),
    ...(secret.value === undefined ? {} : { value: secret.value }),
  }
}

export function versionView(version: number) {
  return { version, Version: version }
}
