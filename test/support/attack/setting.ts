// Settings that run programs, load libraries or weaken the server.
import { type Attempt, denied, each } from './attempt.ts'

/** Settings that only a superuser may change in a session, a role or a database. */
const superuserSettings: Record<string, string> = {
  session_preload_libraries: '{outside}/evil.so',
  dynamic_library_path: '{outside}',
  allow_system_table_mods: 'on',
  session_replication_role: 'replica',
  lc_messages: 'C',
  temp_file_limit: '-1',
  zero_damaged_pages: 'on',
  ignore_checksum_failure: 'on',
  ignore_invalid_pages: 'on',
  max_stack_depth: '7MB',
  log_min_messages: 'debug5',
  log_min_error_statement: 'debug5',
  log_statement: 'all',
  log_duration: 'on',
  log_min_duration_statement: '0',
  log_lock_waits: 'on',
  log_executor_stats: 'on',
  track_activities: 'off',
  track_counts: 'off',
  track_functions: 'all',
  update_process_title: 'off',
  commit_delay: '100000',
  deadlock_timeout: '1000000',
  wal_compression: 'off',
  wal_consistency_checking: 'all',
  'pg_stat_statements.track': 'all',
  jit_provider: '{outside}/evil',
  in_hot_standby: 'on',
}

/** Settings that can only be changed in files of the server. */
const fileSettings: Record<string, string> = {
  archive_command: 'touch {outside}/written',
  archive_library: '{outside}/evil.so',
  restore_command: 'touch {outside}/written',
  recovery_end_command: 'touch {outside}/written',
  archive_cleanup_command: 'touch {outside}/written',
  ssl_passphrase_command: 'touch {outside}/written',
  ssl_key_file: '{outside}/canary',
  ssl_ca_file: '{outside}/canary',
  hba_file: '{outside}/canary',
  ident_file: '{outside}/canary',
  config_file: '{outside}/canary',
  data_directory: '{outside}',
  unix_socket_directories: '{outside}',
  unix_socket_permissions: '0777',
  listen_addresses: '*',
  shared_preload_libraries: '{outside}/evil.so',
  external_pid_file: '{outside}/written',
  log_directory: '{outside}',
  log_filename: 'written',
  logging_collector: 'on',
  log_destination: 'csvlog',
  primary_conninfo: 'host=127.0.0.1',
  wal_level: 'logical',
  max_connections: '10000',
  superuser_reserved_connections: '0',
  reserved_connections: '0',
  max_slot_wal_keep_size: '-1',
  autovacuum: 'off',
  fsync: 'off',
  full_page_writes: 'off',
  ssl: 'off',
}

// 55P02 and 0A000: it cannot be changed now, whoever asks.
const unchangeable = `${denied} 55P02 0A000 42704 22023`

const changes = Object.entries({ ...superuserSettings, ...fileSettings }).flatMap(([name, value]) =>
  each(unchangeable, [
    `set ${name} = '${value}'`,
    `alter system set ${name} = '${value}'`,
    `alter role {me} set ${name} = '${value}'`,
    `alter database "fly-db" set ${name} = '${value}'`,
  ]),
)

const others = [
  ...each(denied, [
    'alter system reset all',
    'alter role all set search_path = public',
    `alter role postgres set search_path = public`,
    `alter role postgres in database "fly-db" set search_path = public`,
    `alter role berth_pooler set search_path = public`,
    `alter role berth_pooler in database "fly-db" set session_replication_role = replica`,
    `alter database postgres set search_path = public`,
    `alter database template1 set search_path = public`,
    `create function pg_temp.f() returns int language sql set session_preload_libraries = 'x' as 'select 1'`,
    `create function pg_temp.f() returns int language sql set session_replication_role = 'replica' as 'select 1'`,
    `select set_config('session_preload_libraries', 'x', false)`,
    `select set_config('allow_system_table_mods', 'on', true)`,
    `update pg_settings set setting = 'on' where name = 'allow_system_table_mods'`,
    `grant set on parameter session_preload_libraries to {me}`,
    `grant alter system on parameter archive_command to {me}`,
  ]),
  // The session only loads libraries from one directory of the installation.
  ...each(`${denied} ok`, [
    `set local_preload_libraries = '{outside}/evil.so'`,
    ['begin', `alter role {me} set local_preload_libraries = '../dblink'`],
    ['begin', `alter role {me} set role = 'postgres'`],
    ['begin', `alter role {me} set session_authorization = 'postgres'`],
  ]),
  ...each(denied, [`load '{outside}/evil.so'`, `load 'dblink'`, `load '$libdir/dblink'`, `load '../dblink'`]),
]

export const settingAttempts: Attempt[] = [...changes, ...others]
