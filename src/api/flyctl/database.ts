import { Type } from 'typebox'
import { getCluster } from '../../actions/postgres/cluster.ts'
import {
  createClusterDatabase,
  type DatabaseExtension,
  disableClusterExtension,
  enableClusterExtension,
  listClusterDatabases,
  listClusterExtensions,
} from '../../live/postgres/database.ts'
import {
  changeUserRole,
  createClusterUser,
  deleteClusterUser,
  getCredentials,
  listClusterUsers,
} from '../../live/postgres/user.ts'
import { CreateDatabase, Identifier, UserRoleChange, userRoles } from '../../model/postgres/user.ts'
import type { Route } from '../http/route.ts'
import { accessOf } from './postgres.ts'
import { ById, families, internalRoute, noCluster, notReady } from './route.ts'

const ByUser = Type.Object({ ...ById.properties, username: Type.String({ description: 'The name of the user.' }) })
const ByDatabase = Type.Object({
  ...ById.properties,
  database: Type.String({ description: 'The name of the database.' }),
})
const ByExtension = Type.Object({
  ...ByDatabase.properties,
  extension: Type.String({ description: 'The name of the extension.' }),
})

const NewUser = Type.Object(
  {
    username: Type.Optional(Identifier('username', 'The name of the new user.')),
    user_name: Type.Optional(Identifier('user_name', 'Alias of `username`.')),
    role: Type.Optional(Type.Enum([...userRoles])),
    db_name: Type.Optional(Type.String({ description: 'The database of the connection string.' })),
  },
  { anyOf: [{ required: ['username'] }, { required: ['user_name'] }], examples: [{ username: 'ada' }] },
)

const NewExtension = Type.Object({
  name: Type.String({ minLength: 1, maxLength: 63 }),
  schema: Type.Optional(Type.String({ maxLength: 63 })),
  create_schema_if_needed: Type.Optional(Type.Boolean()),
})

const noUser = `${noCluster} Or: it has no such user.`
const noDatabase = `${noCluster} Or: it has no such database or extension.`

export const flyctlDatabaseRoutes: Route[] = families.flatMap(({ family, suffix }) => {
  const base = `/api/v1/${family}/{postgres_cluster_id}`
  const id = (name: string) => `flyctl${name}${suffix}`
  return [
    internalRoute({
      method: 'GET',
      path: `${base}/users`,
      id: id('ListUsers'),
      summary: 'List the users of a cluster',
      scope: 'read',
      params: ById,
      status: 200,
      errors: { 404: noCluster, 422: notReady },
      run: async ({ ctx, params }) => {
        const users = await listClusterUsers(ctx, params.postgres_cluster_id)
        return { data: users.map(({ username, role }) => ({ name: username, role })) }
      },
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/users`,
      id: id('CreateUser'),
      summary: 'Create a user',
      scope: 'write',
      action: 'create',
      outsideTransaction: true,
      params: ById,
      body: NewUser,
      status: 201,
      errors: { 400: 'The user is reserved.', 404: noCluster, 409: 'A user of this name exists.', 422: notReady },
      run: async ({ ctx, params, body }) => {
        const username = body.username ?? body.user_name ?? ''
        const made = await createClusterUser(ctx, params.postgres_cluster_id, {
          username,
          role: body.role ?? 'schema_admin',
        })
        const access = await accessOf(ctx, await getCluster(ctx, params.postgres_cluster_id), username, body.db_name)
        return { ok: true, data: { name: made.username, role: made.role }, connection_uri: access.pgbouncer_uri }
      },
    }),
    internalRoute({
      method: 'PATCH',
      path: `${base}/users/{username}`,
      id: id('UpdateUser'),
      summary: 'Change the role of a user',
      scope: 'write',
      params: ByUser,
      body: UserRoleChange,
      status: 200,
      errors: { 400: 'The user is reserved.', 404: noUser, 422: notReady },
      run: async ({ ctx, params, body }) => {
        await changeUserRole(ctx, params.postgres_cluster_id, params.username, body.role)
        return { data: { name: params.username, role: body.role } }
      },
    }),
    internalRoute({
      method: 'DELETE',
      path: `${base}/users/{username}`,
      id: id('DeleteUser'),
      summary: 'Delete a user',
      scope: 'write',
      params: ByUser,
      status: 204,
      errors: { 400: 'The user is reserved.', 404: noUser, 422: notReady },
      run: ({ ctx, params }) => deleteClusterUser(ctx, params.postgres_cluster_id, params.username),
    }),
    internalRoute({
      method: 'GET',
      path: `${base}/users/{username}/credentials`,
      id: id('GetCredentials'),
      summary: 'Show the password of a user',
      scope: 'read',
      action: 'write',
      params: ByUser,
      status: 200,
      errors: { 400: 'The user is reserved.', 404: noUser, 422: notReady },
      run: async ({ ctx, params }) => {
        const { username, password } = await getCredentials(ctx, params.postgres_cluster_id, params.username)
        return { data: { ...(family === 'postgres' ? { user: username } : { username }), password } }
      },
    }),
    internalRoute({
      method: 'GET',
      path: `${base}/databases`,
      id: id('ListDatabases'),
      summary: 'List the databases of a cluster',
      scope: 'read',
      params: ById,
      status: 200,
      errors: { 404: noCluster, 422: notReady },
      run: async ({ ctx, params }) => ({
        data: (await listClusterDatabases(ctx, params.postgres_cluster_id)).map((name) => ({ name })),
      }),
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/databases`,
      id: id('CreateDatabase'),
      summary: 'Create a database',
      scope: 'write',
      action: 'create',
      outsideTransaction: true,
      params: ById,
      body: CreateDatabase,
      status: 201,
      errors: { 400: 'The database is reserved.', 404: noCluster, 422: notReady },
      run: async ({ ctx, params, body }) => {
        await createClusterDatabase(ctx, params.postgres_cluster_id, body.name)
        return { data: { name: body.name } }
      },
    }),
    internalRoute({
      method: 'GET',
      path: `${base}/databases/{database}/extensions`,
      id: id('ListExtensions'),
      summary: 'List the extensions of a database',
      scope: 'read',
      params: ByDatabase,
      status: 200,
      errors: { 400: 'The database is reserved.', 404: noDatabase, 422: notReady },
      run: async ({ ctx, params }) => ({
        data: (await listClusterExtensions(ctx, params.postgres_cluster_id, params.database)).map(extensionView),
      }),
    }),
    internalRoute({
      method: 'POST',
      path: `${base}/databases/{database}/extensions`,
      id: id('EnableExtension'),
      summary: 'Enable an extension',
      scope: 'write',
      action: 'create',
      outsideTransaction: true,
      params: ByDatabase,
      body: NewExtension,
      status: 204,
      errors: {
        400: 'The database is reserved.',
        404: noDatabase,
        409: 'The extension is already enabled.',
        422: notReady,
      },
      run: ({ ctx, params, body }) => {
        const { name, schema, create_schema_if_needed } = body
        return enableClusterExtension(ctx, params.postgres_cluster_id, params.database, {
          name,
          ...(schema === undefined ? {} : { schema }),
          create_schema: create_schema_if_needed ?? false,
        })
      },
    }),
    internalRoute({
      method: 'DELETE',
      path: `${base}/databases/{database}/extensions/{extension}`,
      id: id('DisableExtension'),
      summary: 'Disable an extension',
      scope: 'write',
      params: ByExtension,
      query: Type.Object({
        force: Type.Optional(Type.Boolean({ description: 'Also remove objects that depend on it.' })),
      }),
      status: 204,
      errors: { 404: noDatabase, 422: notReady },
      run: ({ ctx, params, query }) =>
        disableClusterExtension(
          ctx,
          params.postgres_cluster_id,
          params.database,
          params.extension,
          query.force ?? false,
        ),
    }),
  ]
})

function extensionView({ name, description, defaultVersion, system, installed }: DatabaseExtension) {
  return {
    name,
    description: description ?? '',
    docs_url: '',
    default_version: defaultVersion,
    is_system: system,
    installed,
  }
}
