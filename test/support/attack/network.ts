// Connections that the server makes for a tenant: to itself as another user, to the host, and to other programs.
import { type Attempt, denied, each } from './attempt.ts'

// 08001: there was no connection. 2F003 comes before one is made: the tenant has to give a password.
const refused = '08001 2F003'

const hosts = ['{socket}', '{sockets}', '/tmp', '/run/postgresql', '127.0.0.1', '::1', 'localhost']

const asPlatform = hosts.flatMap((host) => [
  `host=${host} port={port} user=postgres dbname=postgres`,
  `host=${host} port={port} user=postgres dbname=postgres password=x`,
  `host=${host} port={port} user=postgres dbname=fly-db password=x`,
  `host=${host} port={port} user=berth_pooler dbname=fly-db password=x`,
])

/** As another user of the cluster, who may have more rights. */
const asOther = hosts.flatMap((host) => [
  `host=${host} port={port} user=other-admin dbname=fly-db`,
  `host=${host} port={port} user=other-admin dbname=fly-db password=x`,
])

const asPlatformWithOptions = [
  `options=''-c session_preload_libraries={outside}/evil.so''`,
  `options=''-c local_preload_libraries=x''`,
  `options=''-c dynamic_library_path={outside}''`,
  `replication=true`,
  `replication=database`,
  `sslmode=disable gssencmode=disable require_auth=none`,
  `require_auth=scram-sha-256`,
  `channel_binding=disable`,
].map((more) => `host={socket} port={port} user=postgres dbname=postgres password=x ${more}`)

const toPlatform = [
  'host={home}/run/state user=berth dbname=berth password=x',
  'host={home}/run/state user=postgres dbname=postgres password=x',
  'host=127.0.0.1 port={api} user=x dbname=x password=x sslmode=disable',
  'host=127.0.0.1 port={listener} user=x dbname=x password=x sslmode=disable',
  'hostaddr=127.0.0.1 port={listener} user=x dbname=x password=x sslmode=disable',
  'host=127.1 port={listener} user=x dbname=x password=x sslmode=disable',
  'host=0.0.0.0 port={listener} user=x dbname=x password=x sslmode=disable',
  'host=::ffff:127.0.0.1 port={listener} user=x dbname=x password=x sslmode=disable',
  'host=localhost port={listener} user=x dbname=x password=x sslmode=disable',
  'host=127.0.0.1 port={pooler} user=postgres dbname=postgres password=x sslmode=disable',
  'host=127.0.0.1 port={pooler} user=berth_pooler dbname=pgbouncer password=x sslmode=disable',
]

const files = [
  'sslmode=require sslcert={outside}/canary sslkey={outside}/canary',
  'sslmode=require sslcert={outside}/canary sslkey={outside}/evil.so:key',
  'sslmode=verify-ca sslrootcert={outside}/canary',
  'sslmode=verify-ca sslrootcert=/etc/shadow',
  'sslmode=require sslcrl={outside}/canary',
  'sslmode=require sslcrldir={outside}',
  'passfile={outside}/canary',
  'service={outside}/canary',
  'sslkeylogfile={outside}/written',
].map((more) => `host=127.0.0.1 port={port} user=x dbname=fly-db password=x ${more}`)

const literal = (text: string) => `'${text}'`

const links = each(`${refused} 08003 42601`, [
  ...[...asPlatform, ...asOther, ...asPlatformWithOptions, ...toPlatform, ...files].map(
    (place) => `select * from dblink(${literal(place)}, 'select 1') t (x int)`,
  ),
  `select dblink_connect('evil', 'host={socket} port={port} user=postgres dbname=postgres password=x')`,
  `select dblink_exec('host={socket} port={port} user=postgres dbname=postgres password=x', 'create role evil superuser')`,
  `select dblink_send_query('host={socket} port={port} user=postgres password=x', 'select 1')`,
])

interface Wrapped {
  server: string
  mapping: string
}

const wrapped: Wrapped[] = [
  { server: `host '{socket}', port '{port}', dbname 'postgres'`, mapping: `user 'postgres', password 'x'` },
  { server: `host '{sockets}', port '{port}', dbname 'postgres'`, mapping: `user 'postgres', password 'x'` },
  { server: `host '{socket}', port '{port}', dbname 'postgres'`, mapping: `user 'postgres'` },
  { server: `host '127.0.0.1', port '{port}', dbname 'postgres'`, mapping: `user 'postgres', password 'x'` },
  { server: `host '127.0.0.1', port '{listener}', dbname 'x', sslmode 'disable'`, mapping: `user 'x', password 'x'` },
  { server: `host '{home}/run/state', dbname 'berth'`, mapping: `user 'berth', password 'x'` },
  {
    server: `host '{socket}', port '{port}', dbname 'postgres', options '-c session_preload_libraries={outside}/evil.so'`,
    mapping: `user 'postgres', password 'x'`,
  },
  {
    server: `host '127.0.0.1', port '{port}', dbname 'fly-db', sslmode 'verify-ca', sslrootcert '{outside}/canary'`,
    mapping: `user 'x', password 'x'`,
  },
  {
    server: `host '127.0.0.1', port '{port}', dbname 'fly-db'`,
    mapping: `user 'x', password 'x', sslcert '{outside}/canary', sslkey '{outside}/canary'`,
  },
  { server: `host '{socket}', port '{port}'`, mapping: `user 'postgres', password_required 'false'` },
  { server: `host '{socket}', port '{port}', passfile '{outside}/canary'`, mapping: `user 'postgres'` },
  { server: `service '{outside}/canary'`, mapping: `user 'postgres', password 'x'` },
  { server: `host '{socket}', port '{port}'`, mapping: `user 'postgres', password 'x', passfile '{outside}/canary'` },
]

const wrappers = each(
  denied,
  wrapped.map(({ server, mapping }) => [
    `create server evil foreign data wrapper postgres_fdw options (${server})`,
    `create user mapping for current_user server evil options (${mapping})`,
    `create foreign table public.evil (x text) server evil options (schema_name 'pg_catalog', table_name 'pg_authid')`,
    'select * from public.evil',
  ]),
  { admin: `${refused} HV00D HV000 42501 42602`, undo: 'drop server if exists evil cascade' },
)

const mappings = each(`${denied} 42704`, [
  'create user mapping for postgres server loopback options (user $$postgres$$)',
  'create user mapping for public server loopback options (user $$postgres$$, password_required $$false$$)',
  `alter server loopback options (set host '{socket}')`,
  'import foreign schema pg_catalog from server loopback into public',
])

export const networkAttempts: Attempt[] = [...links, ...wrappers, ...mappings]
