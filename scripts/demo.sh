#!/bin/sh
# Demonstrates point-in-time recovery in about a minute: drops a table and restores it into a new cluster. It starts a
# platform of its own in a temporary directory and removes it at the end. Takes no arguments.
set -eu

cd "$(dirname "$0")/.."

# The demo must not touch a platform that the user runs or has configured.
unset BERTH_URL BERTH_TOKEN BERTH_DATABASE_URL BERTH_REPOSITORY BERTH_TLS_CERT BERTH_TLS_KEY BERTH_REGIONS BERTH_RATE_LIMIT
export BERTH_API_LISTEN=127.0.0.1:0 BERTH_SANDBOX_LISTEN=127.0.0.1:0 BERTH_EDGE_LISTEN=127.0.0.1:0
export PSQLRC=/dev/null PSQL_PAGER='' PGTZ=UTC PGDATESTYLE=ISO

if [ -t 1 ]; then
  bold=$(printf '\033[1m') dim=$(printf '\033[2m') green=$(printf '\033[32m') plain=$(printf '\033[0m')
else
  bold='' dim='' green='' plain=''
fi

say() {
  printf '\n%s%s%s\n' "$bold" "$*" "$plain"
}

fail() {
  printf '\nThe demo failed: %s\n' "$*" >&2
  exit 1
}

# Prints a command as it would be typed.
show_command() {
  printf '%s$' "$dim"
  for word in "$@"; do
    case $word in
      *[!a-zA-Z0-9_./:=-]*) printf ' "%s"' "$word" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '%s\n' "$plain"
}

run() {
  show_command "$@"
  "$@"
}

# wait_for <description> <seconds> <command>...: repeats a command until it succeeds or the time is up.
wait_for() {
  what=$1 seconds=$2
  shift 2
  end=$(($(date +%s) + seconds))
  until "$@"; do
    if [ "$(date +%s)" -ge "$end" ]; then fail "$what did not happen within $seconds seconds"; fi
    sleep 0.3
  done
}

home=''
platform=''

clean_up() {
  status=$?
  # A second signal must not interrupt the cleanup.
  trap '' INT TERM HUP
  trap - EXIT
  if [ -n "$home" ]; then
    if [ -n "$platform" ]; then
      # The control plane ends first: if it is still starting, it would start services after "berth down".
      kill "$platform" 2>/dev/null || true
      wait "$platform" 2>/dev/null || true
      ./berth down >/dev/null 2>"$home/down.log" || { cat "$home/down.log" >&2; status=1; }
    fi
    rm -rf "$home"
    if [ "$status" = 0 ]; then printf '%sThe demo platform has been stopped and removed.%s\n' "$dim" "$plain"; fi
  fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 129' HUP
trap 'exit 143' TERM

is_answering() {
  kill -0 "$platform" 2>/dev/null || { tail -n 20 "$home/demo.log" >&2; fail 'the platform did not start'; }
  ./berth status >/dev/null 2>&1
}

has_backup() {
  ./berth postgres backups shop 2>/dev/null | grep -q ' completed '
}

# Cuts a time to seconds, the part that the API and PostgreSQL write alike.
seconds_of() {
  printf '%s' "$1" | cut -c 1-19 | tr T ' '
}

is_in_window() {
  latest=$(./berth postgres window shop --json | sed -n 's/.*"latest": "\(.*\)".*/\1/p' | tail -n 1)
  newer=$(printf '%s\n%s\n' "$(seconds_of "$latest")" "$(seconds_of "$moment")" | LC_ALL=C sort | tail -n 1)
  [ "$newer" != "$(seconds_of "$moment")" ]
}

query='select * from orders order by id'
expected='1|anchor
2|rope
3|lantern'

home=$(mktemp -d "${TMPDIR:-/tmp}/berth-demo-XXXXXX")
# Clusters run as other users, which must be able to traverse it.
chmod 711 "$home"
export BERTH_HOME="$home"

say 'Start a platform. All its files are in one directory.'
show_command "BERTH_HOME=$home" ./berth up
./berth up >"$home/demo.log" 2>&1 &
platform=$!
wait_for 'the start of the platform' 120 is_answering

say 'Create a PostgreSQL cluster. Its WAL is archived from the start.'
run ./berth postgres create shop

say 'The first backup is taken automatically as soon as the cluster is ready.'
wait_for 'the first backup' 120 has_backup
run ./berth postgres backups shop

say 'Store some orders ...'
run ./berth postgres connect shop -- -qc 'create table orders (id int primary key, item text)'
run ./berth postgres connect shop -- -c "insert into orders values (1, 'anchor'), (2, 'rope'), (3, 'lantern')"
show_command ./berth postgres connect shop -- -Atc 'select clock_timestamp()'
moment=$(./berth postgres connect shop -- -Atc 'select clock_timestamp()')
printf '%s\n' "$moment"

say '... and drop the table by accident.'
run ./berth postgres connect shop -- -c 'drop table orders'

say 'Restore the cluster to the moment before. Any time in the recovery window works, to the microsecond.'
wait_for 'archiving the WAL up to the restore target' 60 is_in_window
run ./berth postgres window shop
run ./berth postgres restore shop --to "$moment" --name shop-before

say 'The original cluster is unchanged; its table is still gone:'
if run ./berth postgres connect shop -- -c "$query" 2>&1; then fail 'the dropped table is still there'; fi

say 'The new cluster has every row:'
run ./berth postgres connect shop-before -- -c "$query"

found=$(./berth postgres connect shop-before -- -Atc "$query")
[ "$found" = "$expected" ] || fail "the restored rows are not the ones that were stored: $found"
printf '%sThe rows are back, in a new cluster.%s\n' "$green" "$plain"
