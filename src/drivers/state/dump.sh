#!/bin/sh
# Dumps a database into a compressed file. The connection parameters come from the environment (PGHOST, PGDATABASE …).
# Usage: dump.sh <file> <directory of the client programs>
# The file appears only when the dump is complete. A repeated run starts over.
umask 077
rm -f "$1" "$1.new" || exit 1
"$2/pg_dump" --no-password --no-privileges --compress=gzip --file="$1.new" || exit 1
mv "$1.new" "$1"
