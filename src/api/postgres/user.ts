import { Type } from 'typebox'
import {
  changeUserRole,
  createClusterUser,
  deleteClusterUser,
  getCredentials,
  listClusterUsers,
  rotatePassword,
} from '../../live/postgres/user.ts'
import { CreateUser, Credentials, RotatePassword, UserRoleChange, UserView } from '../../model/postgres/user.ts'
import { type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from './cluster.ts'

const ByName = Type.Object({ ...ById.properties, username: Type.String({ description: 'The name of the user.' }) })

const reserved = 'The user is reserved.'
const noUser = `${noCluster} Or: it has no such user.`
const notReady = 'The cluster is not ready.'

export const userRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/users',
    id: 'listUsers',
    tag: 'Postgres',
    summary: 'List the users of a cluster',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(Type.Array(UserView)),
    errors: { 404: noCluster, 422: notReady },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: await listClusterUsers(ctx, params.postgres_cluster_id) }),
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/users',
    id: 'createUser',
    tag: 'Postgres',
    summary: 'Create a user',
    description: 'The platform generates the password; read it from the credentials of the user.',
    scope: 'write',
    action: 'create',
    outsideTransaction: true,
    params: ById,
    body: CreateUser,
    status: 201,
    response: Data(UserView),
    errors: {
      400: reserved,
      404: noCluster,
      409: 'A user of this name exists.',
      422: `A field is not valid. Or: ${notReady}`,
    },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => ({ data: await createClusterUser(ctx, params.postgres_cluster_id, body) }),
  }),
  route({
    method: 'PATCH',
    path: '/v1/postgres/{postgres_cluster_id}/users/{username}',
    id: 'changeUserRole',
    tag: 'Postgres',
    summary: 'Change the role of a user',
    description: 'Its open sessions are ended.',
    scope: 'write',
    params: ByName,
    body: UserRoleChange,
    status: 204,
    errors: { 400: reserved, 404: noUser, 422: `The role is not valid. Or: ${notReady}` },
    wrongTypeStatus: 422,
    run: ({ ctx, params, body }) => changeUserRole(ctx, params.postgres_cluster_id, params.username, body.role),
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/users/{username}',
    id: 'deleteUser',
    tag: 'Postgres',
    summary: 'Delete a user',
    description: 'Its sessions are ended, and its objects are reassigned to the schema admins.',
    scope: 'write',
    params: ByName,
    status: 204,
    errors: { 400: reserved, 404: noUser, 422: notReady },
    wrongTypeStatus: 400,
    run: ({ ctx, params }) => deleteClusterUser(ctx, params.postgres_cluster_id, params.username),
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/users/{username}/credentials',
    id: 'getCredentials',
    tag: 'Postgres',
    summary: 'Show the password of a user',
    description: 'Read-only tokens are refused, because the password allows writing.',
    scope: 'read',
    action: 'write',
    params: ByName,
    status: 200,
    response: Data(Credentials),
    errors: { 400: reserved, 404: noUser, 422: notReady },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => ({ data: await getCredentials(ctx, params.postgres_cluster_id, params.username) }),
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/users/{username}/rotate_password',
    id: 'rotatePassword',
    tag: 'Postgres',
    summary: 'Reset the password of a user',
    scope: 'write',
    action: 'write',
    outsideTransaction: true,
    params: ByName,
    body: RotatePassword,
    status: 200,
    response: Data(Credentials),
    errors: { 400: reserved, 404: noUser, 422: `A field is not valid. Or: ${notReady}` },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      const killSessions = body.kill_sessions ?? false
      return { data: await rotatePassword(ctx, params.postgres_cluster_id, params.username, killSessions) }
    },
  }),
]
