#!/bin/sh
# Removes unfinished WAL segments of the wrong size, with which pg_receivewal would refuse to start, and then executes it.
# Usage: receive.sh <archive directory> <size of a segment in bytes> <pg_receivewal> <option>...
#
# pg_receivewal fills a new segment with zeros before it writes WAL to it. If the disk becomes full meanwhile, a short
# file without any WAL remains.
umask 077
for file in "$1"/*.partial; do
  [ -e "$file" ] || continue
  size=$(stat -c %s "$file")
  [ "$size" -eq 0 ] || [ "$size" -eq "$2" ] || rm -v "$file"
done
shift 2
exec "$@"
