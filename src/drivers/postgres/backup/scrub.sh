#!/bin/sh
# Verifies the checksums of a backup as it is on disk.
# Usage: scrub.sh <data directory of the backup> <directory of the client programs> <damage that is known already, or empty>
# Exit codes: 10 the backup is gone, 20 it differs from its checksums.
cd "$1" || exit 10
[ -z "$3" ] || { echo "$3"; exit 20; }
# A link would be followed, and a pipe would block.
odd=$(find . ! -type f ! -type d -print -quit)
[ -z "$odd" ] || { echo "pg_verifybackup: error: \"${odd#./}\" is not a file"; exit 20; }
# Drops the files from the page cache, so that they are read from disk.
find . -type f -exec dd if={} iflag=nocache count=0 status=none \;
"$2/pg_verifybackup" --no-parse-wal --quiet . && exit 0
code=$?
# A verification that was killed says nothing about the backup.
[ $code -le 128 ] || exit $code
exit 20
