#!/bin/sh
# Upgrades a stopped data directory to a newer major version with pg_upgrade, and verifies the result.
# Usage: upgrade.sh <directory> <server programs of the old version> <server programs of the new version>
#   <client programs of the new version>
# Environment: SUPERUSER; OLD_OPTIONS and NEW_OPTIONS for its sessions; INITDB_OPTIONS; SQL_BEFORE for template0, and
#   SQL_AFTER, SQL_AFTER_PLATFORM and SQL_AFTER_TEMPLATE0 for the other databases, that of the platform, and template0.
# Exit code 20: the cluster cannot be upgraded; the last line says why. 21: the result is damaged.
#
# It runs as the user of the cluster, in a directory that only this job sees: `old` is the data directory, `new` the one
# that pg_upgrade fills. The latter is renamed to `upgraded` and, when it is complete, to `data`, from where the platform
# moves it to its place. pg_upgrade links the files, which does not change those of `old` until a server has used the
# new ones; so an interrupted job starts again from `old`, or from `upgraded` once that exists.
umask 077
directory=$1 old_bin=$2 new_bin=$3 tools=$4
cd "$directory" || exit 1
sockets=$(mktemp -d /tmp/upgrade.XXXXXXXX) || exit 1
export PGHOST="$sockets" PGPORT=5432 PGUSER="$SUPERUSER" PGAPPNAME=berth-upgrade
failed=20 damaged=21

fail() {
  code=$1
  shift
  echo "$*" | tr '\n' ' ' | head -c 2000
  echo
  exit "$code"
}

# The server listens only on a socket in this box and admits only the superuser.
write_configuration() {
  echo "local all $SUPERUSER peer map=upgrade" > access.conf
  echo "upgrade \"$(id -un)\" $SUPERUSER" > identities.conf
  cat > server.conf <<END
listen_addresses = ''
unix_socket_directories = '$sockets'
hba_file = '$directory/access.conf'
ident_file = '$directory/identities.conf'
autovacuum = off
max_connections = 20
max_locks_per_transaction = 8192
max_wal_senders = 0
logging_collector = off
END
}

# Usage: start <directory of programs> <data directory>
start() {
  rm -f "$2/postmaster.pid"
  "$1/pg_ctl" -w -s -t 3600 -D "$2" -l "$directory/server.log" -o "-c config_file=$directory/server.conf" start ||
    fail $failed "PostgreSQL does not start: $(grep -E 'FATAL|PANIC' server.log | tail -n 1)"
}

stop() {
  "$1/pg_ctl" -w -s -t 3600 -m fast -D "$2" stop || exit 1
}

# Runs the statements on standard input; prints errors only, and no warnings. The database is not passed as an argument,
# because psql would parse a name with `=` as a connection string, and tenants choose the names.
query() {
  PGDATABASE="$1" PGOPTIONS=$options "$tools/psql" -X -q -At -v ON_ERROR_STOP=1 2> errors.log ||
    { cat errors.log; return 1; }
}

# Runs a function for every database. A name may contain line breaks, so databases are listed by number. The mark keeps
# those at the end of a name.
for_each_database() {
  numbers=$(echo "select oid from pg_database where datallowconn order by oid" | query "$SUPERUSER") ||
    fail $failed "$numbers"
  for number in $numbers; do
    name=$(echo "select datname || '|' from pg_database where oid = $number" | query "$SUPERUSER") || exit 1
    "$1" "${name%|}"
  done
}

# pg_dump before 17.6 writes names with line breaks into comments, where the rest of a name becomes a statement
# (CVE-2025-8715).
refuse_line_breaks() {
  found=$(query "$1" <<'SQL'
select format('select %L, %I::text from pg_catalog.%I where %I::text ~ E''[\\n\\r]''', relname, attname, relname, attname)
from pg_class join pg_attribute on attrelid = pg_class.oid
where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and atttypid = 'name'::regtype and attnum > 0 \gexec
SQL
  ) || fail $failed "$found"
  [ -z "$found" ] ||
    fail $failed "a name contains a line break, with which pg_upgrade cannot deal; rename the object: $1: $found"
}

# PostgreSQL evaluates immutable functions of constants when it creates a table, and pg_upgrade creates tables as
# superuser. So the functions of tenants do nothing meanwhile. Their definitions are in a table, from which they are taken
# again without a program that would have to parse them. The schema of another owner is not ours.
disarm_functions() {
  message=$(query "$1" <<'SQL'
select count(*) filter (where rolsuper) > 0 as is_done, count(*) filter (where not rolsuper) > 0 as is_taken
from pg_namespace join pg_authid on pg_authid.oid = nspowner where nspname = 'berth_upgrade' \gset
\if :is_taken
  do $$ begin raise 'the schema berth_upgrade is reserved; rename it'; end $$;
\endif
\if :is_done
\else
  begin;
  set local allow_system_table_mods = on;
  create schema berth_upgrade;
  create table berth_upgrade.function as
    select pg_proc.oid as number, pg_get_functiondef(pg_proc.oid) as definition
    from pg_proc join pg_authid on pg_authid.oid = proowner where not rolsuper and prokind in ('f', 'p');
  update pg_proc set prosrc = 'begin return null; end', prosqlbody = null,
    prolang = (select oid from pg_language where lanname = 'plpgsql')
  where oid in (select number from berth_upgrade.function);
  commit;
\endif
SQL
  ) || fail $failed "$1: $message"
}

arm_functions() {
  message=$(query "$1" <<'SQL'
select count(*) > 0 as is_disarmed from pg_namespace where nspname = 'berth_upgrade' \gset
\if :is_disarmed
  begin;
  set local check_function_bodies = off;
  select definition from berth_upgrade.function order by number \gexec
  drop schema berth_upgrade cascade;
  commit;
\endif
SQL
  ) || fail $failed "$1: $message"
}

# pg_upgrade gives every extension to the superuser, and no statement can give it back. This is what CREATE EXTENSION
# records for another owner; entries for the superuser do not exist.
save_owners() {
  query "$1" > "owners.$number.sql" <<'SQL' || exit 1
select format('update pg_extension set extowner = %2$L::regrole where extname = %1$L; insert into pg_shdepend
  select pg_database.oid, %3$L::regclass, pg_extension.oid, 0, %4$L::regclass, %2$L::regrole, %5$L
  from pg_extension, pg_database where extname = %1$L and datname = current_database() and not exists (
    select from pg_shdepend where dbid = pg_database.oid and classid = %3$L::regclass and objid = pg_extension.oid);',
  extname, extowner::regrole, 'pg_extension', 'pg_authid', 'o')
from pg_extension join pg_authid on pg_authid.oid = extowner where not rolsuper;
SQL
}

# pg_upgrade connects to every database. Those that are closed are opened here and closed again at the end.
prepare_old() {
  options=$OLD_OPTIONS
  start "$old_bin" old
  echo "select format('drop database %I', datname) from pg_database where datconnlimit = -2 \\gexec" |
    query "$SUPERUSER" || exit 1
  if [ ! -e close.sql ]; then
    echo "select format('alter database %I allow_connections false;', datname) from pg_database
      where not datallowconn and datname <> 'template0'" | query "$SUPERUSER" > close.sql.new || exit 1
    sync close.sql.new && mv close.sql.new close.sql || exit 1
  fi
  echo "select format('alter database %I allow_connections true', datname) from pg_database
    where not datallowconn and datname <> 'template0' \\gexec" | query "$SUPERUSER" || exit 1
  for_each_database refuse_line_breaks
  for_each_database save_owners
  for_each_database disarm_functions
  stop "$old_bin" old
}

# The programs of the old version that pg_upgrade needs. pg_resetwal only has to print the state of the old cluster, and
# may be missing; pg_controldata of the next version can read it.
collect_old_programs() {
  rm -rf old-bin && mkdir old-bin
  for program in postgres pg_ctl; do ln -s "$old_bin/$program" "old-bin/$program"; done
  for program in pg_controldata pg_resetwal; do
    if [ -x "$old_bin/$program" ]; then ln -s "$old_bin/$program" "old-bin/$program"; fi
  done
  [ -e old-bin/pg_controldata ] || ln -s "$tools/pg_controldata" old-bin/pg_controldata
  [ -e old-bin/pg_resetwal ] || cat > old-bin/pg_resetwal <<END
#!/bin/sh
case \$1 in -V) exec '$tools/pg_resetwal' -V ;; esac
for data; do :; done
'$tools/pg_controldata' "\$data" || exit 1
last=\$(ls "\$data/pg_wal" | grep -E '^[0-9A-F]{24}\$' | cut -c 9-24 | sort | tail -n 1)
log=\$((0x\$(echo "\$last" | cut -c 1-8))) segment=\$((0x\$(echo "\$last" | cut -c 9-16) + 1))
[ \$segment -lt 256 ] || { segment=0; log=\$((log + 1)); }
printf 'First log segment after reset:        00000001%08X%08X\n' \$log \$segment
END
  chmod 700 old-bin/pg_resetwal
}

# pg_upgrade insists on programs of its own minor version, but the server may be of any.
collect_new_programs() {
  rm -rf new-bin && mkdir new-bin
  version=$("$tools/pg_upgrade" -V) || fail $failed "pg_upgrade was not found in $tools"
  version=${version##* }
  for program in pg_controldata pg_resetwal pg_dump pg_dumpall pg_restore psql vacuumdb; do
    ln -s "$tools/$program" "new-bin/$program"
  done
  for program in postgres pg_ctl initdb; do
    cat > "new-bin/$program" <<END
#!/bin/sh
[ "\$1" != -V ] || { echo '$program (PostgreSQL) $version'; exit; }
exec '$new_bin/$program' "\$@"
END
    chmod 700 "new-bin/$program"
  done
}

# Prints what pg_upgrade complains about, which follows its last check, and the files that it refers to.
explain() {
  grep -vE '(^| )(ok|fatal|failed check: .*)$|^ *$|^-+$|^Performing |^If pg_upgrade fails |^Restoring |^Consult |^the probable cause |^child process |^Failure, exiting|^\*failure\*|^ *.?/|is in the file' output |
    tail -n 15
  find new/pg_upgrade_output.d -name '*.txt' -exec head -n 5 {} + 2> /dev/null
  log=$(sed -n 's/^Consult the last few lines of "\(.*\)" for$/\1/p' output | tail -n 1)
  [ -z "$log" ] || grep -aE 'error:|ERROR:|FATAL:' "$log" | tail -n 3
}

# Options in PGOPTIONS override settings that a tenant attached to a database or a role. Event triggers of the platform
# would grant rights that are about to be restored.
run_pg_upgrade() {
  PGOPTIONS=$OLD_OPTIONS "$tools/pg_upgrade" --old-datadir="$directory/old" --new-datadir="$directory/new" \
    --old-bindir="$directory/old-bin" --new-bindir="$directory/new-bin" --username="$SUPERUSER" \
    --socketdir="$sockets" --link --jobs=2 \
    --old-options="-c config_file=$directory/server.conf" \
    --new-options="-c config_file=$directory/server.conf -c event_triggers=off" "$@" > output 2>&1 ||
    fail $failed "pg_upgrade: $(explain)"
}

upgrade() {
  [ -d old ] || fail $failed 'the data directory is missing'
  rm -rf new
  # An interrupted pg_upgrade has renamed it.
  [ ! -e old/global/pg_control.old ] || mv old/global/pg_control.old old/global/pg_control
  echo 'stage: checking'
  prepare_old
  # shellcheck disable=SC2086 # several options
  "$new_bin/initdb" -D new --no-sync --no-instructions $INITDB_OPTIONS > output 2>&1 ||
    fail $failed "initdb: $(tail -n 1 output)"
  run_single new template0 "$SQL_BEFORE"
  collect_old_programs
  collect_new_programs
  unset PGHOST PGPORT
  run_pg_upgrade --check
  echo 'stage: upgrading'
  run_pg_upgrade
  export PGHOST="$sockets" PGPORT=5432
  sync -f . && mv -T new upgraded && sync . || exit 1
}

# Runs statements in a database that accepts no connections. With -j an empty line ends a batch of statements.
# Usage: run_single <data directory> <database> <statements>
run_single() {
  printf '%s\n\n' "$3" | "$new_bin/postgres" --single -j -D "$1" -c "config_file=$directory/server.conf" \
    -c exit_on_error=on "$2" > single.log 2>&1 || fail $failed "$2: $(tail -n 1 single.log)"
}

give_rights() {
  if [ "$1" = "$SUPERUSER" ]; then sql=$SQL_AFTER_PLATFORM; else sql=$SQL_AFTER; fi
  message=$(echo "$sql" | query "$1") || fail $failed "$message"
  message=$({ echo 'begin; set local allow_system_table_mods = on;'; cat "owners.$number.sql"; echo 'commit;'; } |
    query "$1") || fail $failed "$message"
}

# The script of an extension runs as superuser, so it must not run where tenants can create objects: extensions that
# PostgreSQL trusts are updated with the rights of their owner, others in a schema of the platform. What cannot be moved
# keeps its version, which works with the new library.
update_extensions() {
  echo "select format(case when trusted and not rolsuper
      then 'begin; set local role %4\$I; alter extension %1\$I update; commit;'
      else 'begin; alter extension %1\$I set schema pg_berth; alter extension %1\$I update;
        alter extension %1\$I set schema %3\$I; commit;' end, extname, extversion, nspname, rolname)
    from pg_extension join pg_namespace on pg_namespace.oid = extnamespace join pg_authid on pg_authid.oid = extowner
    join pg_available_extensions on name = extname
    join pg_available_extension_versions available on available.name = extname and version = default_version
    where extversion <> default_version and (trusted and not rolsuper or extrelocatable)" |
    query "$1" > statements.sql || exit 1
  PGDATABASE="$1" PGOPTIONS=$options "$tools/psql" -X -q -f statements.sql 2>&1
}

# ANALYZE evaluates expressions of tenants with the rights of the owner of the table. Their errors and endless loops are
# theirs; autovacuum will try again.
analyze() {
  echo "select format('analyze %s', pg_class.oid::regclass) from pg_class
    where relkind in ('r', 'm', 'p') and relnamespace <> 'information_schema'::regnamespace" |
    query "$1" | sed 's/$/;/' > statements.sql || exit 1
  PGDATABASE="$1" PGOPTIONS="$options -c statement_timeout=60s" "$tools/psql" -X -q -f statements.sql > analyze.log 2>&1 ||
    :
}

# See drill/contents.sh. Rolled back, so that nothing of the check remains.
check_database() {
  damage=$(query "$1" <<'SQL'
begin;
create extension if not exists amcheck schema pg_catalog;
alter extension amcheck set schema pg_catalog;
select pg_catalog.bt_index_check(index => oid) from (
  select pg_class.oid from pg_index
  join pg_class on pg_class.oid = indexrelid join pg_am on pg_am.oid = relam
  where amname = 'btree' and relkind = 'i' and relpersistence = 'p' and indisready and indisvalid
  offset 0) checked \g /dev/null
select checked.oid::regclass || ' block ' || coalesce(blkno::text, '?') || ': ' || msg from (
  select pg_class.oid from pg_class left join pg_am on pg_am.oid = relam
  where (amname = 'heap' and relkind in ('r', 't', 'm') or relkind = 'S') and relpersistence = 'p'
  offset 0) checked, lateral pg_catalog.verify_heapam(checked.oid, check_toast => true) limit 1;
rollback;
SQL
  ) || fail $damaged "$1: $damage"
  [ -z "$damage" ] || fail $damaged "$1: $damage"
}

finish_upgrade() {
  rm -rf old new
  options=$NEW_OPTIONS
  start "$new_bin" upgraded
  powerful=$(echo "select string_agg(rolname, ', ') from pg_authid where (rolsuper or rolreplication or rolbypassrls)
    and rolname <> '$SUPERUSER'" | query "$SUPERUSER") || fail $failed "$powerful"
  [ -z "$powerful" ] || fail $damaged "these roles have the rights of a superuser: $powerful"
  for_each_database arm_functions
  for_each_database give_rights
  for_each_database update_extensions
  echo 'stage: analyzing'
  for_each_database analyze
  echo 'stage: verifying'
  for_each_database check_database
  query "$SUPERUSER" < close.sql || exit 1
  stop "$new_bin" upgraded
  run_single upgraded template0 "$SQL_AFTER_TEMPLATE0"
  message=$("$tools/pg_checksums" --check --pgdata=upgraded 2>&1 > /dev/null) || fail $damaged "$message"
  sync -f . && mv -T upgraded data && sync . || exit 1
}

if [ -e data ]; then exit 0; fi
write_configuration
[ -e upgraded ] || upgrade
finish_upgrade
