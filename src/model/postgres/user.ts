import { type Static, Type } from 'typebox'
import { base62, randomText } from '../ids.ts'

export const userRoles = ['schema_admin', 'writer', 'reader'] as const
export type UserRole = (typeof userRoles)[number]

export interface ClusterUser {
  username: string
  role: UserRole
}

/** Roles that the platform or PostgreSQL needs and that the API does not create, change or drop. */
export function isReservedUser(username: string): boolean {
  return reservedUsers.has(username) || /^(pg|berth)_/.test(username)
}

const reservedUsers = new Set(['postgres', 'berth', 'flypgadmin', 'repmgr', 'public', 'none', ...userRoles])

/** The key of the turn that changes of a user take. */
export function userTurn(clusterId: string, username: string): string {
  return `user ${clusterId}/${username}`
}

/** The database in which an import is prepared. */
export const copyDatabase = 'berth_import'

/** Databases that the API neither shows nor changes. Every cluster has the first three. */
export const platformDatabases: ReadonlySet<string> = new Set(['postgres', 'template0', 'template1', copyDatabase])

/** The API creates none of these names; the others have a special meaning in PgBouncer. */
export const reservedDatabases: ReadonlySet<string> = new Set([...platformDatabases, 'pgbouncer', '*'])

/** Letters and digits only, so that it needs no escaping in connection strings. */
export function newPassword(): string {
  return randomText(24, base62)
}

const Role = Type.Enum([...userRoles], {
  description:
    '`schema_admin` may change the schema, `writer` data, `reader` may only read; all of it, also later objects.',
})

/** PostgreSQL silently truncates identifiers to 63 bytes. */
const maxIdentifierBytes = 63

/** `.` and `..` are rejected, because HTTP clients resolve them in request paths even when encoded. */
export const Identifier = (field: string, description: string) =>
  Type.String({
    minLength: 1,
    maxLength: maxIdentifierBytes,
    pattern: '^(?!\\.{1,2}$)',
    description,
    refusal: `${field} must be 1 to ${maxIdentifierBytes} characters, and not "." or ".."`,
  })

export const CreateUser = Type.Object({ username: Identifier('username', 'The name of the new user.'), role: Role })
export type CreateUser = Static<typeof CreateUser>

export const UserView = Type.Object({ username: Type.String(), role: Role }, { title: 'PostgresUser' })
export const UserRoleChange = Type.Object({ role: Role })
export const RotatePassword = Type.Object({
  kill_sessions: Type.Optional(Type.Boolean({ description: 'Also terminate the open sessions of the user.' })),
})
export const Credentials = Type.Object(
  { username: Type.String(), password: Type.String() },
  { title: 'PostgresCredentials' },
)

export const CreateDatabase = Type.Object({ name: Identifier('name', 'The name of the new database.') })
export const DatabaseView = Type.Object({ name: Type.String() }, { title: 'PostgresDatabase' })

export const EnableExtension = Type.Object(
  {
    name: Identifier('name', 'The name of the extension.'),
    schema: Type.Optional(
      Type.String({ maxLength: maxIdentifierBytes, description: 'The schema in which to create its objects.' }),
    ),
    create_schema: Type.Optional(
      Type.Boolean({ description: 'Create the schema if absent.', refusal: 'create_schema must be true or false' }),
    ),
  },
  { examples: [{ name: 'pg_trgm' }] },
)
export type EnableExtension = Static<typeof EnableExtension>

export const ExtensionView = Type.Object(
  {
    name: Type.String(),
    description: Type.Optional(Type.String()),
    default_version: Type.Optional(Type.String()),
    system: Type.Boolean({ description: 'Always enabled; cannot be changed.' }),
    installed: Type.Union([Type.Object({ version: Type.String(), schema: Type.String() }), Type.Null()]),
  },
  { title: 'PostgresExtension' },
)
