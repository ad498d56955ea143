// What a tenant tries while it connects.
import type pg from 'pg'

export interface Login {
  name: string
  change: pg.ClientConfig & { replication?: string }
  /** True if the connection may succeed, because the option has no effect on rights. */
  harmless?: boolean
}

const users = [
  'postgres',
  'berth_pooler',
  'schema_admin',
  'writer',
  'reader',
  'pg_monitor',
  'pg_database_owner',
  'other-admin',
]
const passwords = [undefined, '', 'postgres', 'SCRAM-SHA-256']

const otherUsers: Login[] = users.flatMap((user) => [
  { name: `as ${user}`, change: { user } },
  { name: `as ${user} to the database postgres`, change: { user, database: 'postgres' } },
])

const wrongPasswords: Login[] = ['postgres', 'berth_pooler', 'other-admin'].flatMap((user) =>
  passwords.map((password) => ({
    name: `as ${user} with the password ${password}`,
    change: { user, password: password ?? '' },
  })),
)

const databases = [
  'postgres',
  'template0',
  'template1',
  'pgbouncer',
  '*',
  '',
  ' ',
  'fly-db ',
  'FLY-DB',
  `'`,
  '../fly-db',
]
const odd = [
  'fly-db options=-csearch_path=x',
  'host=127.0.0.1 dbname=postgres',
  'postgresql://postgres@127.0.0.1/postgres',
]
const otherDatabases: Login[] = [...databases, ...odd]
  // Without a name, the name of the user is taken.
  .map((database) => ({
    name: `to the database "${database}"`,
    // PgBouncer 1.18 lets the first client of an unknown database wait for longer than this.
    change: { database, connectionTimeoutMillis: 2000 },
    // Admins create other databases from there.
    harmless: database === 'postgres',
  }))

const options = [
  '-c session_preload_libraries=/tmp/evil.so',
  '-c dynamic_library_path=/tmp',
  '-c allow_system_table_mods=on',
  '-c session_replication_role=replica',
  '-c log_statement=all',
  '-c archive_command=id',
  '-c temp_file_limit=-1',
  '-c role=postgres',
  '-c role=berth_pooler',
  '-c session_authorization=postgres',
  '--session-preload-libraries=/tmp/evil.so',
  '-c local_preload_libraries=../dblink',
  '-O',
  '-d 5',
  '--single',
]
const startOptions: Login[] = options.map((option) => ({
  name: `with the option ${option}`,
  change: { options: option },
}))
const harmlessOptions: Login[] = ['-c search_path=evil', '-c row_security=off', '-S 1MB', '-P', '-D /tmp'].map(
  (option) => ({
    name: `with the option ${option}`,
    change: { options: option },
    harmless: true,
  }),
)

const replication: Login[] = ['true', 'on', '1', 'database'].flatMap((value) => [
  { name: `for replication (${value})`, change: { replication: value } },
  { name: `for replication as postgres (${value})`, change: { replication: value, user: 'postgres' } },
])

export const logins: Login[] = [
  ...otherUsers,
  ...wrongPasswords,
  ...otherDatabases,
  ...startOptions,
  ...harmlessOptions,
  ...replication,
]
