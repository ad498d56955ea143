#!/bin/sh
# Removes lock files that would keep PostgreSQL from starting.
# Usage: clear-stale-locks.sh <data directory> <lock file of the socket>
#
# After a reboot the pid in a lock file may belong to another process with the same uid, and a crash can leave the file
# empty: PostgreSQL refuses to start in both cases. Such a file is removed, but only if no process works in the data
# directory, as every process of a PostgreSQL server does. If the server named in the file is gone, its orphaned
# backends are killed: one in the middle of a long query does not notice and keeps the next server from starting.

# shellcheck disable=SC3013 # dash and bash have -ef
data=$1
for lock in "$data/postmaster.pid" "$2"; do
  [ -e "$lock" ] || continue
  pid=$(head -n 1 "$lock" | tr -d ' -')
  if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
    for directory in /proc/[0-9]*/cwd; do
      process=${directory%/cwd}
      [ "$directory" -ef "$data" ] || continue
      if [ "$(cat "$process/comm" 2>/dev/null)" = postgres ]; then kill -9 "${process#/proc/}" || :; fi
    done
    continue
  fi
  for directory in /proc/[0-9]*/cwd; do
    if [ "$directory" -ef "$data" ]; then exit 0; fi
  done
  rm -f "$lock"
done
