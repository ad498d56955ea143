// Extensions: installing what the platform does not offer, abusing what it has installed, and the scripts themselves.
import { type Attempt, denied, each } from './attempt.ts'

/** Installed through the API before the attempts, because only the platform may install these. */
export const installed = [
  ...[
    'amcheck',
    'autoinc',
    'bloom',
    'dblink',
    'dict_xsyn',
    'earthdistance',
    'insert_username',
    'intagg',
    'moddatetime',
  ],
  ...['pageinspect', 'pg_buffercache', 'pg_freespacemap', 'pg_prewarm', 'pg_visibility', 'pg_walinspect', 'pgrowlocks'],
  ...['pgstattuple', 'pltcl', 'postgres_fdw', 'refint', 'sslinfo', 'xml2', 'citext', 'lo'],
]

const untrusted = [
  'adminpack',
  'file_fdw',
  'pg_surgery',
  'old_snapshot',
  'amcheck',
  'dblink',
  'postgres_fdw',
  'pageinspect',
]

// 0A000 and 58P01: this installation does not have it. 42710: the platform has installed it.
const installs = each(`${denied} 0A000 58P01 42710 22023 42602 42601`, [
  ...untrusted.flatMap((name) => [`create extension ${name}`, `create extension ${name} schema pg_catalog`]),
  ...['../../evil', '{outside}/evil', 'a/b', '--', ''].map((name) => `create extension "${name}"`),
  `create extension citext version '../../evil'`,
]).concat(
  // PostgreSQL installs a trusted extension into any schema. Its members are functions in C that belong to the superuser,
  // and nothing of the tenant can follow them there.
  each(
    denied,
    ['pg_catalog', 'pg_berth'].flatMap((schema) => [
      `create extension hstore schema ${schema}`,
      [
        `create extension hstore schema ${schema}`,
        `create function public.evil() returns int language sql as 'select 1'`,
        'alter extension hstore add function public.evil()',
      ],
    ]),
    { admin: 'ok', undo: 'drop extension if exists hstore; drop function if exists public.evil()' },
  ),
  each(
    denied,
    ['pg_catalog', 'pg_berth'].map((schema) => [
      'create schema trap',
      'create extension hstore schema trap',
      `create function trap.evil() returns int language sql as 'select 1'`,
      'alter extension hstore add function trap.evil()',
      `alter extension hstore set schema ${schema}`,
    ]),
    { undo: 'drop extension if exists hstore; drop schema if exists trap cascade' },
  ),
)

const members = each(`${denied} 55000 42704 0A000 42809 42883`, [
  `create or replace function dblink_connect_u(text) returns text language sql as 'select 1'`,
  'alter function dblink_connect_u(text) owner to current_user',
  'grant execute on function dblink_connect_u(text) to {me}',
  'alter function dblink(text, text) security definer',
  'alter extension dblink set schema pg_temp',
  'alter extension dblink update',
  `alter extension dblink update to '1.0'`,
  ['create temp view v as select 1', 'alter extension dblink add view v'],
  'alter extension dblink drop function dblink_connect_u(text)',
  'drop extension dblink',
  'drop extension postgres_fdw cascade',
  'alter foreign data wrapper postgres_fdw owner to current_user',
  'alter foreign data wrapper postgres_fdw no validator',
  'alter foreign data wrapper postgres_fdw handler file_fdw_handler',
  'alter foreign data wrapper dblink_fdw options (add x $$1$$)',
  'create server evil foreign data wrapper dblink_fdw',
  'comment on extension dblink is null',
  'alter extension amcheck add function now()',
  'alter extension citext add function pg_read_file(text)',
])

/** Functions that read raw pages, which contain rows that the user may not see. */
// 42883 and 42704: this version does not have it.
const pages = each(`${denied} 42883 42704`, [
  `select get_raw_page('pg_authid', 0)`,
  `select get_raw_page('pg_authid', 'main', 0)`,
  `select * from page_header(get_raw_page('pg_authid', 0))`,
  `select * from heap_page_items(get_raw_page('pg_authid', 0))`,
  `select * from bt_metap('pg_authid_rolname_index')`,
  `select * from bt_page_items('pg_authid_rolname_index', 1)`,
  `select * from bt_page_stats('pg_authid_rolname_index', 1)`,
  `select * from heap_page_items('x'::bytea)`,
  `select tuple_data_split(1260, 'x'::bytea, 0, 0, '')`,
  `select pg_truncate_visibility_map('pg_authid')`,
  `select * from pg_get_wal_records_info('0/1', '0/2')`,
  `select * from pg_get_wal_block_info('0/1', '0/2')`,
  `select * from pg_get_wal_record_info('0/1')`,
  `select * from pg_get_wal_stats('0/1', '0/2')`,
  `select bt_index_check('pg_authid_rolname_index'::regclass)`,
  `select bt_index_parent_check('pg_authid_rolname_index'::regclass, true, true)`,
  `select * from verify_heapam('pg_authid')`,
  'select pg_buffercache_evict(1)',
  `select heap_force_kill('pg_authid'::regclass, array['(0,1)']::tid[])`,
  'select dblink_connect_u($$host=127.0.0.1$$)',
  'select dblink_connect_u($$evil$$, $$host=127.0.0.1$$)',
])

/** Statistics of pages, without their contents: allowed to members of pg_monitor. */
const statistics = each(
  denied,
  [
    `select * from pgstattuple('pg_authid')`,
    `select * from pgstatindex('pg_authid_rolname_index')`,
    `select * from pg_visibility('pg_authid')`,
    `select count(*) from pg_buffercache`,
    `select * from pg_buffercache_summary()`,
    `select * from pg_freespace('pg_authid')`,
    `select * from pgrowlocks('pg_authid')`,
  ],
  { admin: 'ok' },
)

const scripts = [
  // A script of a trusted extension runs as superuser, in a schema of the tenant with the same names in it.
  ...each(
    `${denied} 3F000`,
    [
      [
        'create schema trap',
        `create function trap.boom(text, text) returns bool language plpgsql
         as $$ begin raise 'ran as %', current_user; end $$`,
        'create operator trap.= (leftarg = text, rightarg = text, function = trap.boom)',
        'create operator trap.<> (leftarg = text, rightarg = text, function = trap.boom)',
        'create type trap.text as (x int)',
        'create type trap.name as (x int)',
        'create extension hstore schema trap',
        'create extension ltree schema trap',
        'create extension pg_trgm schema trap',
        'create extension btree_gist schema trap',
        'create extension "uuid-ossp" schema trap',
        'create extension tablefunc schema trap',
        'create extension unaccent schema trap',
        'create extension intarray schema trap',
        'create extension seg schema trap',
        'create extension isn schema trap',
        'create extension pgcrypto schema trap',
      ],
    ],
    { admin: 'ok', undo: 'drop schema if exists trap cascade' },
  ),
  // Objects with the names of members are not adopted by the extension.
  ...each(
    `${denied} 3F000`,
    [
      ...[
        'create type trap.hstore as (x int)',
        `create function trap.akeys(text) returns text language sql as 'select 1'`,
      ].map((plant) => ['create schema trap', plant, 'create extension hstore schema trap']),
      ['create schema trap', 'create view trap.ltree as select 1', 'create extension ltree schema trap'],
      [
        'create schema trap',
        `create function trap.gen_random_uuid() returns uuid language sql as 'select null::uuid'`,
        'create extension pgcrypto schema trap',
      ],
    ],
    { admin: 'ok 42501 42710 42723 42P07 42704 55000 42809', undo: 'drop schema if exists trap cascade' },
  ),
  // The owner of a trusted extension does not own its members.
  ...each(
    `${denied} 3F000`,
    [
      ...[
        'alter function trap.akeys(trap.hstore) security definer',
        'alter function trap.akeys(trap.hstore) owner to current_user',
        `create or replace function trap.akeys(trap.hstore) returns text[] language sql as 'select null::text[]'`,
        'alter type trap.hstore owner to current_user',
        'alter extension hstore drop type trap.hstore',
        'alter extension hstore add function pg_catalog.pg_read_file(text)',
        'alter extension hstore add schema pg_berth',
      ].map((sql) => ['create schema trap', 'create extension hstore schema trap', sql]),
    ],
    { admin: `${denied} 55000`, undo: 'drop schema if exists trap cascade' },
  ),
]

export const extensionAttempts: Attempt[] = [...installs, ...members, ...pages, ...statistics, ...scripts]
