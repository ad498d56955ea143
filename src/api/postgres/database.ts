import { Type } from 'typebox'
import type { DatabaseExtension } from '../../live/postgres/database.ts'
import {
  createClusterDatabase,
  disableClusterExtension,
  dropClusterDatabase,
  enableClusterExtension,
  listClusterDatabases,
  listClusterExtensions,
} from '../../live/postgres/database.ts'
import { CreateDatabase, DatabaseView, EnableExtension, ExtensionView } from '../../model/postgres/user.ts'
import { type Route, route } from '../http/route.ts'
import { ById, Data, noCluster } from './cluster.ts'

const ByName = Type.Object({ ...ById.properties, database: Type.String({ description: 'The name of the database.' }) })
const ByExtension = Type.Object({
  ...ByName.properties,
  extension: Type.String({ description: 'The name of the extension.' }),
})

const reserved = 'The database is reserved.'
const noDatabase = `${noCluster} Or: it has no such database.`
const notReady = 'The cluster is not ready.'

export const databaseRoutes: Route[] = [
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/databases',
    id: 'listDatabases',
    tag: 'Postgres',
    summary: 'List the databases of a cluster',
    scope: 'read',
    params: ById,
    status: 200,
    response: Data(Type.Array(DatabaseView)),
    errors: { 404: noCluster, 422: notReady },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const names = await listClusterDatabases(ctx, params.postgres_cluster_id)
      return { data: names.map((name) => ({ name })) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/databases',
    id: 'createDatabase',
    tag: 'Postgres',
    summary: 'Create a database',
    scope: 'write',
    action: 'create',
    outsideTransaction: true,
    params: ById,
    body: CreateDatabase,
    status: 201,
    response: Data(DatabaseView),
    errors: { 400: reserved, 404: noCluster, 422: `The name is not valid or taken. Or: ${notReady}` },
    wrongTypeStatus: 422,
    run: async ({ ctx, params, body }) => {
      await createClusterDatabase(ctx, params.postgres_cluster_id, body.name)
      return { data: { name: body.name } }
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/databases/{database}',
    id: 'dropDatabase',
    tag: 'Postgres',
    summary: 'Drop a database',
    description: 'Deletes the database with its content and ends its sessions.',
    scope: 'write',
    params: ByName,
    status: 200,
    response: Data(DatabaseView),
    errors: {
      400: reserved,
      404: noDatabase,
      422: `It is a template, or a prepared transaction is open in it. Or: ${notReady}`,
    },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      await dropClusterDatabase(ctx, params.postgres_cluster_id, params.database)
      return { data: { name: params.database } }
    },
  }),
  route({
    method: 'GET',
    path: '/v1/postgres/{postgres_cluster_id}/databases/{database}/extensions',
    id: 'listExtensions',
    tag: 'Postgres',
    summary: 'List the extensions of a database',
    scope: 'read',
    params: ByName,
    status: 200,
    response: Data(Type.Array(ExtensionView)),
    errors: { 400: reserved, 404: noDatabase, 422: `The database does not allow connections. Or: ${notReady}` },
    wrongTypeStatus: 400,
    run: async ({ ctx, params }) => {
      const extensions = await listClusterExtensions(ctx, params.postgres_cluster_id, params.database)
      return { data: extensions.map(extensionView) }
    },
  }),
  route({
    method: 'POST',
    path: '/v1/postgres/{postgres_cluster_id}/databases/{database}/extensions',
    id: 'enableExtension',
    tag: 'Postgres',
    summary: 'Enable an extension',
    description: 'Enables required extensions as well.',
    scope: 'write',
    action: 'create',
    outsideTransaction: true,
    params: ByName,
    body: EnableExtension,
    status: 204,
    errors: {
      400: reserved,
      404: `${noDatabase} Or: there is no such extension.`,
      409: 'The extension is already enabled.',
      422: `A field is not valid. Or: ${notReady}`,
    },
    wrongTypeStatus: 422,
    run: ({ ctx, params, body }) => enableClusterExtension(ctx, params.postgres_cluster_id, params.database, body),
  }),
  route({
    method: 'DELETE',
    path: '/v1/postgres/{postgres_cluster_id}/databases/{database}/extensions/{extension}',
    id: 'disableExtension',
    tag: 'Postgres',
    summary: 'Disable an extension',
    scope: 'write',
    params: ByExtension,
    query: Type.Object({
      force: Type.Optional(Type.Boolean({ description: 'Also remove objects that depend on it.' })),
    }),
    status: 204,
    errors: {
      400: `${reserved} Or: the extension is part of every database.`,
      404: `${noDatabase} Or: the extension is not enabled in it.`,
      422: `Objects depend on it and \`force\` was not given. Or: ${notReady}`,
    },
    wrongTypeStatus: 422,
    run: ({ ctx, params, query }) => {
      const { postgres_cluster_id, database, extension } = params
      return disableClusterExtension(ctx, postgres_cluster_id, database, extension, query.force ?? false)
    },
  }),
]

function extensionView(extension: DatabaseExtension) {
  return {
    name: extension.name,
    ...(extension.description === null ? {} : { description: extension.description }),
    default_version: extension.defaultVersion,
    system: extension.system,
    installed: extension.installed,
  }
}
