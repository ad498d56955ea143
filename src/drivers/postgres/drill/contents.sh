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

# The database is not passed as an argument, because psql would parse a name with `=` as a connection string, and
# tenants choose the names.
query_as_superuser() {
  as_superuser env PGDATABASE="$1" "$tools/psql" -X -At -v ON_ERROR_STOP=1 -c "$2"
}

attempts=0
until message=$(query_as_superuser "$SUPERUSER" 'select 1' 2>&1); do
  attempts=$((attempts + 1))
  [ $attempts -lt 300 ] || { echo "$message"; exit 11; }
  sleep 1
done

# Where pages.sh could not run pg_checksums, a base backup makes the server verify the checksum of every page.
"$tools/pg_checksums" --version 2>&1 | grep -q "(PostgreSQL) ${major}[^0-9]" ||
  as_superuser "$tools/pg_basebackup" --pgdata=- --format=tar --wal-method=none --checkpoint=fast \
    --no-manifest --no-password > /dev/null || exit 10

check_indexes="select pg_catalog.bt_index_check(index => indexrelid) from pg_catalog.pg_index
  join pg_catalog.pg_class on pg_class.oid = indexrelid join pg_catalog.pg_am on pg_am.oid = relam
  where amname = 'btree' and relkind = 'i' and relpersistence = 'p' and indisready and indisvalid"
check_tables="select pg_class.oid::regclass || ' block ' || blkno || ': ' || msg from pg_catalog.pg_class
  join pg_catalog.pg_am on pg_am.oid = relam, lateral pg_catalog.verify_heapam(pg_class.oid::regclass)
  where amname = 'heap' and relkind in ('r', 't', 'm') and relpersistence = 'p' limit 1"

if [ -x "$tools/pg_amcheck" ]; then
  as_superuser "$tools/pg_amcheck" --all --install-missing --no-password || exit 12
else
  databases=$(query_as_superuser "$SUPERUSER" 'select datname from pg_database where datallowconn') || exit 12
  IFS='
'
  for database in $databases; do
    query_as_superuser "$database" 'create extension if not exists amcheck schema pg_catalog' > /dev/null || exit 12
    query_as_superuser "$database" "$check_indexes" > /dev/null || exit 12
    damage=$(query_as_superuser "$database" "$check_tables") || exit 12
    [ -z "$damage" ] || { echo "$damage"; exit 12; }
  done
  unset IFS
fi

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
