#!/bin/sh
# Verifies the checksum of every page of a stopped server.
# Usage: pages.sh <directory of the client programs> <major version> <data directory>
# Exit code 10: a checksum is wrong.
tools=$1 major=$2 data=$3

# pg_checksums reads data directories of its own major version only, and the client programs may be of another one. In
# that case contents.sh verifies the checksums.
"$tools/pg_checksums" --version 2>&1 | grep -q "(PostgreSQL) ${major}[^0-9]" || exit 0

# Standard output is only a summary; errors go to standard error.
"$tools/pg_checksums" --check --pgdata="$data" > /dev/null || exit 10
