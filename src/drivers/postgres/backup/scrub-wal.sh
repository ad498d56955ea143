#!/bin/sh
# Compares archived WAL with its digests, as it is on disk.
# Usage: scrub-wal.sh <directory of the archive> <a line for each file: digest and name>
# Prints the last compared file, or the first one that is damaged or missing and why. Missing segments are skipped, because
# retention may have removed them.
# Exit codes: 10 the archive is gone, 20 a file is damaged or missing.
cd "$1" || exit 10
last=
while read -r digest name; do
  if [ -L "$name" ] || [ ! -f "$name" ]; then
    case $name in *.history) echo "missing $name is missing from its archive"; exit 20 ;; esac
    last=$name
    continue
  fi
  # Drops the file from the page cache, so that it is read from disk.
  dd if="$name" iflag=nocache count=0 status=none
  found=$(sha256sum < "$name" 2>&1)
  code=$?
  # A comparison that was killed says nothing about the file.
  [ $code -le 128 ] || exit $code
  [ $code -eq 0 ] || { echo "damaged $name cannot be read: ${found##*: }"; exit 20; }
  [ "${found%% *}" = "$digest" ] || { echo "damaged $name differs from its recorded digest"; exit 20; }
  last=$name
done <<END
$2
END
echo "verified $last"
