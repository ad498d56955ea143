#!/bin/sh
# Makes a base backup and verifies it.
# Usage: backup.sh <staging directory> <directory of the client programs> <option of pg_basebackup>...
# Exit codes: 10 the staging directory is gone, 11 the copy failed, 12 the copy is not durable, 13 the copy is damaged.
umask 077
cd "$1" || exit 10
tools=$2
shift 2
rm -rf data started_at stopped_at || exit 12
# The cluster runs on this host, so this is its clock too.
date -u +%s%6N > started_at || exit 12
"$tools/pg_basebackup" "$@" || exit 11
date -u +%s%6N > stopped_at || exit 12
# The flush waits for the disk and the verification for the processor, so both run at the same time.
sync -f . &
nice -n 10 "$tools/pg_verifybackup" --no-parse-wal --progress data || exit 13
wait $! || exit 12
