// Control of the server, replication, other sessions and the objects of the platform.
import { type Attempt, denied, each } from './attempt.ts'

// 55000, 55P02: the server is not in recovery, or not in a binary upgrade.
const control = each(`${denied} 55000 55P02`, [
  'select pg_reload_conf()',
  'select pg_rotate_logfile()',
  'select pg_promote()',
  'select pg_switch_wal()',
  `select pg_create_restore_point('evil')`,
  `select pg_backup_start('evil')`,
  'select pg_backup_stop()',
  'select pg_wal_replay_pause()',
  'select pg_wal_replay_resume()',
  'select pg_log_backend_memory_contexts(pg_backend_pid())',
  'select pg_stat_reset()',
  `select pg_stat_reset_shared('bgwriter')`,
  'select pg_stat_statements_reset()',
  'checkpoint',
  'select pg_nextoid($$pg_class$$::regclass, $$oid$$, $$pg_class_oid_index$$::regclass)',
  'select binary_upgrade_set_next_pg_type_oid(1)',
])

const replication = each(`${denied} 55000`, [
  `select pg_create_physical_replication_slot('evil', true)`,
  `select pg_create_logical_replication_slot('evil', 'test_decoding')`,
  `select pg_create_logical_replication_slot('evil', '{outside}/evil')`,
  `select pg_copy_physical_replication_slot('x', 'evil')`,
  `select pg_drop_replication_slot('x')`,
  `select pg_replication_slot_advance('x', '0/1')`,
  `select pg_logical_slot_get_changes('x', null, null)`,
  `select pg_logical_slot_peek_binary_changes('x', null, null)`,
  `select pg_replication_origin_create('evil')`,
  `select pg_replication_origin_drop('evil')`,
  `select pg_replication_origin_session_setup('evil')`,
  `select pg_replication_origin_advance('evil', '0/1')`,
  `select pg_replication_origin_xact_setup('0/1', now())`,
  `create subscription evil connection 'host=127.0.0.1 port={port} user=postgres password=x' publication p`,
  `create subscription evil connection 'host={socket} user=postgres' publication p with (connect = false)`,
  'create publication evil for all tables',
  'create publication evil for tables in schema public',
]).concat(
  // There may be no slot yet.
  each(`${denied} ok`, [
    'select pg_drop_replication_slot(slot_name) from pg_replication_slots',
    `select pg_copy_physical_replication_slot(slot_name, 'evil') from pg_replication_slots`,
  ]),
  each('ok', [`select pg_logical_emit_message(false, 'evil', 'x')`, 'select pg_export_snapshot()']),
)

// An admin may signal sessions of other users, but not of a superuser.
const sessions = [
  ...each(`${denied} ok`, [
    `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'`,
    'select pg_terminate_backend(pid) from pg_stat_get_activity(null) where usesysid = 10',
    'select pg_terminate_backend(1)',
    'select pg_cancel_backend(0)',
    `select pg_cancel_backend(pid) from pg_stat_activity where usename = 'postgres'`,
    `select pg_terminate_backend(pid) from pg_stat_activity where backend_type <> 'client backend'`,
    `select pg_cancel_backend(pid) from pg_stat_activity where backend_type <> 'client backend'`,
    'select pg_terminate_backend(pid) from pg_stat_replication',
    `select query from pg_stat_activity where usename = 'postgres' and query ~ 'SCRAM'`,
    `select query from pg_stat_statements where query ~* 'scram-sha'`,
    'select pg_try_advisory_lock(1)',
    'select sourcefile from pg_settings where sourcefile is not null',
    'select * from pg_stat_ssl, pg_stat_gssapi limit 1',
    'select * from pg_config()',
    'select * from pg_control_system()',
    `select pg_relation_filepath('pg_class')`,
  ]),
  ...each(`${denied} 42704`, [
    `rollback prepared 'evil'`,
    `commit prepared 'evil'`,
    ['begin', `lock table pg_authid in access exclusive mode`],
    ['begin', `lock table pg_database in access exclusive mode`],
    ['begin', `lock table pg_class in share mode`],
    ['begin', 'lock table pg_extension in exclusive mode'],
  ]),
]

const platformObjects = each(`${denied} 0A000 2BP01`, [
  `select * from pg_berth.lookup('fly-user')`,
  `select pg_berth.lookup('postgres')`,
  `select pg_berth.share(1259, 0)`,
  `select pg_berth.share_new()`,
  `create function pg_berth.lookup(varchar) returns text language sql as 'select 1'`,
  `create or replace function pg_berth.lookup(name text) returns table (username text, password text) language sql
   as 'select rolname, rolpassword from pg_authid'`,
  `create operator pg_berth.= (leftarg = text, rightarg = text, function = texteq)`,
  'create table pg_berth.evil (x int)',
  'alter schema pg_berth owner to current_user',
  'alter schema pg_berth rename to evil',
  'drop schema pg_berth cascade',
  'grant usage on schema pg_berth to {me}',
  'grant execute on function pg_berth.lookup to {me}',
  'alter function pg_berth.lookup owner to current_user',
  'alter function pg_berth.lookup reset search_path',
  `alter function pg_berth.lookup set search_path = public, pg_catalog`,
  'alter function pg_berth.lookup set schema public',
  'alter function pg_berth.lookup security invoker',
  'drop function pg_berth.lookup',
  'drop function pg_berth.share_new() cascade',
  'alter extension plpgsql drop event trigger berth_share',
  'alter extension plpgsql add schema public',
  'alter extension plpgsql update',
  'drop extension plpgsql cascade',
  'alter extension pg_stat_statements set schema pg_temp',
  'drop extension pg_stat_statements cascade',
  `do $$ declare r record; begin for r in select * from pg_berth.lookup('fly-user') loop raise '%', r; end loop; end $$`,
  ['create temp view v as select pg_berth.lookup($$fly-user$$)', 'table v'],
  [`prepare p as select * from pg_berth.lookup('fly-user')`, 'execute p'],
  `select query_to_xml('select * from pg_berth.lookup(''fly-user'')', true, true, '')`,
])

const shadows = each('ok 42501', [
  // What the platform and PostgreSQL call by name in this session must not be replaced by objects of the user.
  [
    `create function pg_temp.now() returns timestamptz language plpgsql as $$ begin raise 'ran'; end $$`,
    'set search_path = pg_temp, pg_catalog',
    'create temp table t (x int)',
  ],
  [
    'create temp table pg_class (oid oid, relkind "char", relpersistence "char")',
    `insert into pg_class values (1259, 'r', 'p')`,
    'create temp table u (x int)',
  ],
  [
    'create temp view pg_authid as select * from pg_roles',
    'set search_path = pg_temp, pg_catalog',
    'select count(*) from pg_authid where rolsuper and rolname <> $$postgres$$',
  ],
  [
    `create function pg_temp.pg_event_trigger_ddl_commands() returns setof pg_class language sql as 'select * from pg_class'`,
    'create temp table t (x int)',
  ],
  [`set quote_all_identifiers = on`, `set transform_null_equals = on`, 'create temp table t (x int)'],
])

export const serverAttempts: Attempt[] = [...control, ...replication, ...sessions, ...platformObjects, ...shadows]
