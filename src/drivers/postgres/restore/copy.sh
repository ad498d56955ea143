#!/bin/sh
# Copies a backup into a data directory that is ready for recovery, and verifies the checksums of the backup.
# Usage: copy.sh copy|verify <directory> <data of the backup> <label> <plan> <settings> <pg_verifybackup> <trust option>
#   <bytes of a WAL segment>
# The plan is a file: the size of the copy on the first line, then a line for each WAL file:
# `<bytes> <name in pg_wal> <number of bytes with a recorded digest> <SHA-256 digest of these bytes> <path>`.
# The settings are the text of postgresql.auto.conf. The trust option is --skip-checksums for a backup whose checksums may
# be verified after a reflink copy, and otherwise empty.
# Exit code 3: the backup is damaged. Exit code 4: a WAL file is; the line before the last one is `wal damaged <name>`.
# Any other failure says nothing about either.
#
# It runs as the user of the cluster, in a directory that only this job sees. The copy is made under a temporary name and
# then renamed to `data`, from where the platform moves it to its place. Only one job of a cluster runs at a time, so other
# temporary names are left over from killed jobs. `verify` is for a copy that has not been verified before.
umask 077
task=$1 directory=$2 backup=$3 label=$4 plan=$5 settings=$6 verifier=$7 trusted=$8 segment_bytes=$9
data=$directory/data
# Exists beside a reflink copy while the checksums of its backup have not been verified.
unverified=$directory/unverified
# The output of the verifier, with a line per second about its progress.
verifier_log=$directory/words
# The error of the WAL file that could not be copied.
wal_error=$directory/wal-error
damaged=3
wal_damaged=4

# Sets `complaint` on failure. Links are not followed, and no pipe or device is opened.
check_types() {
  odd=$(find "$backup" ! -type f ! -type d -printf '"%P" is a %y instead of a file\n' -quit 2>&1) && [ -z "$odd" ] && return 0
  odd=$(echo "$odd" | head -n 1 | sed 's/is a l /is a symbolic link /; s/is a p /is a pipe /; s/is a [bcsDU] /is a special file /')
  complaint="backup $label is damaged: $odd"
  is_about_host "$odd" || return $damaged
  complaint="backup $label could not be read: $odd"
  return 1
}

# True for errors that say nothing about the files.
is_about_host() {
  case $1 in
    *'out of memory'*|*'Cannot allocate memory'*|*'Too many open files'*|*'Stale file handle'*|*'Connection timed out'*| \
    *'Transport endpoint is not connected'*|*'Host is down'*|*'No space left on device'*) return 0 ;;
  esac
  return 1
}

# Sets `complaint` on failure.
verify() {
  check_types || return $?
  "$verifier" -n -e -P "$@" "$backup" > "$verifier_log" 2>&1
  code=$?
  messages=$(grep -v '^ *[0-9]*/[0-9]* kB (' "$verifier_log")
  rm -f "$verifier_log"
  [ $code != 0 ] || return 0
  is_about_host "$messages" || case $messages in
    'pg_verifybackup: error: '*)
      complaint="backup $label is damaged: $(echo "${messages#*error: }" | head -n 1)"
      return $damaged ;;
  esac
  complaint="backup $label could not be verified: exit code $code $messages"
  return 1
}

fail() {
  echo "$complaint"
  exit "$1"
}

# Prints the first bytes of a WAL file. The receiver may have completed a segment since the plan was made, which renames
# it.
wal_bytes() {
  if [ -e "$2" ]; then head -c "$1" -- "$2"; else head -c "$1" -- "${2%.partial}"; fi
}

# Reports the file `name`, unless the error is one of writing. Without a message, the process was killed.
fail_wal() {
  case $1 in
    ''|*'error writing'*|*'write error'*) echo "$1"; exit 1 ;;
  esac
  ! is_about_host "$1" || { echo "$1"; exit 1; }
  echo "wal damaged $name"
  echo "WAL file $name cannot be copied: ${1##*: }"
  exit $wal_damaged
}

# Compares the WAL with its recorded digests. Sets `complaint` on failure.
verify_wal() {
  {
    read -r _
    while read -r _ name bytes digest path; do
      [ "$bytes" -gt 0 ] || continue
      found=$(wal_bytes "$bytes" "$path" | sha256sum)
      [ "${found%% *}" = "$digest" ] && continue
      cluster=${path%/archive/*}
      complaint="wal damaged $name
the write-ahead log is damaged: $name of cluster ${cluster##*/} was changed or belongs to another cluster"
      return $wal_damaged
    done
  } < "$plan"
}

copy_wal() {
  read -r _
  while read -r bytes name _ _ path; do
    case $name in
      *.history) wal_bytes "$bytes" "$path" ;;
      # Padded with zeros instead of a hole: PostgreSQL recycles the file, and filling a hole later could fail.
      *) wal_bytes "$bytes" "$path" && head -c $((segment_bytes - bytes)) /dev/zero ;;
    esac > "pg_wal/$name" 2> "$wal_error" || fail_wal "$(cat "$wal_error")"
    case $name in
      *.history) ;;
      *) [ "$(stat -c %s "pg_wal/$name")" = "$segment_bytes" ] || fail_wal 'it is too short' ;;
    esac
  done
}

fill() {
  set -e
  cp -aT "--reflink=${reflink:-auto}" -- "$backup" "$fresh"
  cd "$fresh"
  chmod 700 .
  rm -rf backup_manifest postmaster.pid postmaster.opts standby.signal pg_replslot pg_wal
  mkdir -p pg_wal/archive_status pg_replslot pg_commit_ts pg_dynshmem pg_logical/mappings pg_logical/snapshots \
    pg_multixact/members pg_multixact/offsets pg_notify pg_serial pg_snapshots pg_stat pg_stat_tmp pg_subtrans \
    pg_tblspc pg_twophase pg_xact
  copy_wal < "$plan"
  printf %s "$settings" > postgresql.auto.conf
  : > recovery.signal
  sync -f .
}

make_copy() {
  rm -rf "$unverified" "$wal_error" "$directory/.copy~"*
  check_types || fail $?
  fresh=$(mktemp -d "$directory/.copy~XXXXXXXXXX") || exit 1
  if cp --reflink=always -- "$backup/PG_VERSION" "$fresh" 2> /dev/null; then
    reflink=${trusted:+always}
  else
    trusted=
    require_space
  fi
  fill & filling=$!
  # In parallel to the copy, so that the disk is read once for both.
  verify ${trusted:+"$trusted"}
  verified=$?
  if [ $verified = 0 ]; then
    verify_wal
    verified=$?
  fi
  wait $filling
  filled=$?
  # The reason may be a file that cannot be read, which only a complete verification tells.
  if [ $filled = 1 ] && [ -n "$trusted" ] && [ $verified = 0 ]; then
    verify
    verified=$?
  fi
  if [ $filled = 0 ] && [ $verified = 0 ]; then
    [ -z "$trusted" ] || { : > "$unverified" && sync "$unverified" "$directory"; } || exit 1
    # It is no failure if `data` has appeared meanwhile: that copy is the same.
    mv -T "$fresh" "$data" || [ -e "$data" ] || filled=1
    sync "$directory"
  fi
  rm -rf "$fresh" "$wal_error"
  # A copy that was killed is repeated.
  [ $filled -le 128 ] || exit $filled
  [ $verified != $damaged ] || fail $verified
  [ $filled = 0 ] || exit $filled
  [ $verified = 0 ] || fail $verified
  return 0
}

# A full disk would affect the other clusters too.
require_space() {
  read -r total < "$plan"
  free=$(df --output=avail -B 1 -- "$directory" | tail -n 1)
  [ "$total" -gt "$free" ] || return 0
  rm -rf "$fresh"
  echo "not enough disk space: $((free >> 20)) MB are free, $((total >> 20)) MB are needed"
  exit 1
}

if [ "$task" = copy ]; then
  [ -e "$data" ] || make_copy
  exit 0
fi
[ -e "$unverified" ] || exit 0
# Verifies the backup instead of the copy, which the server is changing by now. They share their blocks, so damage to one
# is damage to the other.
renice -n 19 $$ > /dev/null
verify || fail $?
rm "$unverified"
sync "$directory"
