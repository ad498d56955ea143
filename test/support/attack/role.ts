// Roles, memberships, and the roles and databases of the platform.
import { type Attempt, denied, each } from './attempt.ts'

const predefined = [
  'pg_execute_server_program',
  'pg_read_server_files',
  'pg_write_server_files',
  'pg_read_all_data',
  'pg_write_all_data',
  'pg_checkpoint',
  'pg_create_subscription',
  'pg_use_reserved_connections',
  'pg_database_owner',
]
const platformRoles = ['postgres', 'berth_pooler']
const attributes = ['superuser', 'createrole', 'createdb', 'replication', 'bypassrls']

// 0LP01, XX000: PostgreSQL allows no members of this role.
const grants = each(`${denied} 0LP01 XX000`, [
  ...[...predefined, ...platformRoles].flatMap((role) => [
    `grant ${role} to {me}`,
    `grant ${role} to {me} with admin option`,
  ]),
  ...[...predefined, ...platformRoles].filter((role) => role !== 'pg_database_owner').map((role) => `set role ${role}`),
  'grant schema_admin to {me} with admin option',
  'grant schema_admin to postgres',
  'grant {me} to postgres',
  'revoke schema_admin from {me}',
  'revoke pg_use_reserved_connections from berth_pooler',
  'grant schema_admin to {me} granted by postgres',
])

// 0A000: nobody may rename the user of the session.
const attributeChanges = each(`${denied} 0A000`, [
  ...attributes.flatMap((attribute) => [
    `create role evil ${attribute}`,
    `alter role {me} ${attribute}`,
    `alter role current_user ${attribute}`,
    `alter role session_user ${attribute}`,
  ]),
  'create role evil',
  'create user evil in role schema_admin',
  'create role evil role postgres',
  'create group evil',
  'alter role {me} connection limit 1000',
  `alter role {me} valid until 'infinity'`,
  'alter role {me} rename to postgres2',
])

const platformRoleChanges = each(
  `${denied} 0A000`,
  ['postgres', 'berth_pooler', 'schema_admin', 'writer', 'reader'].flatMap((role) => [
    `alter role ${role} login`,
    `alter role ${role} superuser`,
    `alter role ${role} rename to evil`,
    `drop role ${role}`,
    `comment on role ${role} is 'evil'`,
  ]),
).concat(
  each(`${denied} 2BP01 22023`, [
    `alter role postgres password 'evil'`,
    `alter role berth_pooler password 'evil'`,
    'alter role postgres nologin',
    'alter role berth_pooler nologin',
    'reassign owned by postgres to {me}',
    'drop owned by postgres',
    'drop owned by berth_pooler',
    'reassign owned by berth_pooler to {me}',
    'security label on role postgres is null',
  ]),
)

const identities = each(denied, [
  'set session authorization postgres',
  'set session authorization berth_pooler',
  'set local session authorization postgres',
  `select set_config('session_authorization', 'postgres', false)`,
  `select set_config('role', 'postgres', false)`,
  `set role 'postgres'`,
  ['reset role', 'set role postgres'],
  ['set session authorization default', 'set role postgres'],
  [
    `create function pg_temp.f() returns text language sql set role = 'postgres' as 'select current_user::text'`,
    'select pg_temp.f()',
  ],
  [
    `create function pg_temp.f() returns text language plpgsql security definer
     as $$ begin set role postgres; return current_user; end $$`,
    'select pg_temp.f()',
  ],
])

// An admin may create databases, but only in the role of the group.
const ownDatabases = each(
  denied,
  [
    'create database evil',
    'create database evil template template0',
    'create database evil template template1 strategy file_copy',
    'create database evil owner reader',
    'create database evil owner pg_monitor',
    'create database evil connection limit 0',
    'create database evil allow_connections false',
    ['create database evil', 'alter database evil set role = postgres'],
    ['create database evil', `alter database evil set session_preload_libraries = '{outside}/evil.so'`],
    ['create database evil', `alter database evil set archive_command = 'touch {outside}/written'`],
    ['create database evil', 'alter database evil owner to postgres'],
    ['create database evil', 'alter database evil rename to template2'],
    ['create database evil', 'alter database evil rename to evil2', 'alter database evil2 rename to evil'],
    ['create database evil', 'alter database evil rename to postgres'],
  ],
  // 42P04: the name is taken, 55P02: the setting cannot be changed now.
  { admin: `ok ${denied} 42P04 55P02`, undo: 'drop database if exists evil with (force)' },
)
ownDatabases.find(({ sql }) => sql.some((statement) => statement.endsWith('template2')))!.undo =
  'drop database if exists template2'

const databases = each(`${denied} 42939 55006 42809 22023 0A000`, [
  'create database evil template "fly-db" owner postgres',
  'create database evil owner postgres',
  'create database evil owner berth_pooler',
  'create database evil owner {me}',
  'create database evil template postgres',
  'create database evil tablespace pg_global',
  'create database evil oid 1',
  'create database evil connection limit -2',
  'alter database "fly-db" owner to berth_pooler',
  'alter database postgres is_template true',
  'alter database postgres connection limit 0',
  'alter database postgres set search_path = evil',
  'alter database postgres reset all',
  'alter database template1 is_template false',
  'alter database template1 set search_path = evil',
  'alter database template0 allow_connections true',
  'alter role schema_admin nocreatedb',
  'alter database "fly-db" owner to postgres',
  'alter database "fly-db" rename to evil',
  'alter database postgres rename to evil',
  'alter database postgres allow_connections true',
  'alter database template1 allow_connections true',
  'alter database template1 owner to current_user',
  'alter database template0 is_template false',
  'drop database postgres',
  'drop database template1',
  'drop database template0',
  `comment on database postgres is 'evil'`,
  'alter database "fly-db" set tablespace pg_global',
  'alter database template1 refresh collation version',
]).concat(
  // Without a right that could be passed on, PostgreSQL only warns.
  each(`${denied} ok`, [
    'grant connect on database postgres to public',
    'grant all on database template1 to {me}',
    'grant all on database postgres to {me} with grant option',
    ['begin', 'revoke connect on database "fly-db" from berth_pooler'],
  ]),
)

export const roleAttempts: Attempt[] = [
  ...grants,
  ...attributeChanges,
  ...platformRoleChanges,
  ...identities,
  ...ownDatabases,
  ...databases,
]
