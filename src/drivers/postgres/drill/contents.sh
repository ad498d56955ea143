#!/bin/sh
# Checks the tables and indexes of a running server with amcheck, and then runs the query of the owner.
# Usage: contents.sh <directory of the client programs> <major version> <output directory>
# Environment: PGHOST, PGPORT; SUPERUSER and SUPERUSER_OPTIONS for the checks; QUERY (may be empty), QUERY_USER,
#   QUERY_DATABASE; MAX_ANSWER_BYTES and MAX_MEMORY_KB for the query.
# Exit codes: 10 a page checksum is wrong, 11 the server does not answer, 12 a table or index is damaged, 13 the query
#   failed.
tools=$1 major=$2 output=$3

as_superuser() {
  PGUSER=$SUPERUSER PGOPTIONS=$SUPERUSER_OPTIONS "$@"
}

# Runs the statements on standard input. The database is not passed as an argument, because psql would parse a name with
# `=` as a connection string, and tenants choose the names.
query_as_superuser() {
  as_superuser env PGDATABASE="$1" "$tools/psql" -X -q -At -v ON_ERROR_STOP=1
}

attempts=0
until message=$(echo 'select 1' | query_as_superuser "$SUPERUSER" 2>&1); do
  attempts=$((attempts + 1))
  [ $attempts -lt 300 ] || { echo "$message"; exit 11; }
  sleep 1
done

# Where pages.sh could not run pg_checksums, a base backup makes the server verify the checksum of every page.
"$tools/pg_checksums" --version 2>&1 | grep -q "(PostgreSQL) ${major}[^0-9]" ||
  as_superuser "$tools/pg_basebackup" --pgdata=- --format=tar --wal-method=none --checkpoint=fast \
    --no-manifest --no-password > /dev/null || exit 10

# pg_amcheck would call functions by their names in the schema of amcheck, where a tenant may have created others of these
# names. So the extension is in pg_catalog during the check, where only superusers can create functions. Indexes are not
# compared with their tables, because that evaluates expressions of tenants. What is left to call is the comparison of
# each operator class, which only superusers can create, and amcheck calls it with the rights of the owner of the table.
# Catalogs and types need no schema, because the search path of the session is empty.
check_database() {
  query_as_superuser "$1" <<'SQL'
create extension if not exists amcheck schema pg_catalog;
select nspname as former from pg_extension join pg_namespace on pg_namespace.oid = extnamespace
  where extname = 'amcheck' \gset
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
alter extension amcheck set schema :"former";
SQL
}

# A name may contain line breaks, so databases are listed by number. The mark keeps those at the end of a name.
databases=$(echo 'select oid from pg_database where datallowconn and datconnlimit <> -2' |
  query_as_superuser "$SUPERUSER") || exit 12
for number in $databases; do
  name=$(echo "select datname || '|' from pg_database where oid = $number" | query_as_superuser "$SUPERUSER") || exit 12
  damage=$(check_database "${name%|}") || exit 12
  [ -z "$damage" ] || { echo "$damage"; exit 12; }
done

[ -n "$QUERY" ] || exit 0

# psql would execute a text that starts with a backslash as a command of its own, which could switch users or start a
# program. After a line break all of it goes to the server. The query could lift statement_timeout, so `timeout` limits
# psql as well. FETCH_COUNT limits the rows in memory, and ulimit the size of a row.
{
  # shellcheck disable=SC3045 # dash and bash have ulimit -v
  ulimit -v "$MAX_MEMORY_KB"
  PGUSER=$QUERY_USER PGDATABASE=$QUERY_DATABASE PGOPTIONS='-c statement_timeout=60s' \
    timeout -k 5 90 "$tools/psql" -X -At -v VERBOSITY=terse -v FETCH_COUNT=100 -c "
$QUERY" < /dev/null
  echo $? > "$output/code"
} | { head -c "$MAX_ANSWER_BYTES" > "$output/answer"; cat > /dev/null; }
read -r code < "$output/code"
case $code in
  0) exit 0 ;;
  124 | 137) echo 'it took longer than a minute' ;;
esac
exit 13
