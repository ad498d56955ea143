#!/bin/sh
# Dumps the source of an import in one snapshot and counts the rows of its tables in the same snapshot.
# Usage: dump.sh <directory of the client programs> <work directory>
# The connection to the source is in the environment of libpq; SLOT is the name of the replication slot to start from, if any.
# Exit codes: 10 the work directory is gone, 11 the snapshot failed, 12 the dump failed, 13 counting failed.
umask 077
tools=$1
cd "$2" || exit 10
rm -rf dump source.counts || exit 10
query() { "$tools/psql" -XAtq -v ON_ERROR_STOP=1 "$@"; }

# A dump that was interrupted has left its slot, which is of no use without its snapshot. Its connection may take a moment
# to end.
if [ -n "$SLOT" ]; then
  tries=0
  until query -c "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '$SLOT'" > /dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 30 ] || exit 11
    sleep 1
  done
fi

# Timeouts that the owner of the source has set, as far as its version knows them.
no_timeouts="do \$\$ begin perform set_config(name, '0', false) from pg_settings where name in
  ('statement_timeout', 'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout'); end \$\$;"

# The snapshot exists as long as the session that exported it.
mkfifo /tmp/commands /tmp/answers || exit 11
if [ -n "$SLOT" ]; then
  query -d 'replication=database' < /tmp/commands > /tmp/answers &
else
  query < /tmp/commands > /tmp/answers &
fi
exec 3> /tmp/commands 4< /tmp/answers
# A session that failed has printed why, and there is no answer to read.
trap '' PIPE
echo "$no_timeouts" >&3
if [ -n "$SLOT" ]; then
  echo "CREATE_REPLICATION_SLOT \"$SLOT\" LOGICAL pgoutput EXPORT_SNAPSHOT;" >&3
  IFS='|' read -r _ _ snapshot _ <&4 || exit 11
else
  echo 'begin isolation level repeatable read read only; select pg_export_snapshot();' >&3
  read -r snapshot <&4 || exit 11
fi

trap - PIPE

query > source.counts <<SQL &
$no_timeouts
begin isolation level repeatable read read only;
set transaction snapshot '$snapshot';
$COUNT_ROWS \\gexec
SQL
counting=$!

# Ends with this shell, also where it is not alone in its box.
while sleep 1 && kill -0 $$; do echo "size $(du -sb dump | cut -f 1)"; done 2>/dev/null &

{
  "$tools/pg_dump" --format=directory --jobs="$JOBS" --snapshot="$snapshot" --file=dump --verbose \
    --lock-wait-timeout=60s --no-publications --no-subscriptions --no-security-labels
  echo $? > /tmp/code
} 2>&1 | perl -e "$REPORT" dump
read -r code < /tmp/code
[ "$code" = 0 ] || exit 12
wait $counting || exit 13
exec 3>&- 4<&-
