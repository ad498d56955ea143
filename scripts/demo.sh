#!/bin/sh
# The story of the product in about a minute: a table is dropped, and comes back in a new cluster. On a platform of its
# own, of which nothing is left in the end.
set -eu

cd "$(dirname "$0")/.."

# Nothing of a platform that the person runs, or talks to, may take part.
unset BERTH_URL BERTH_TOKEN BERTH_DATABASE_URL BERTH_REPOSITORY BERTH_TLS_CERT BERTH_TLS_KEY BERTH_REGIONS BERTH_RATE_LIMIT
export BERTH_API_LISTEN=127.0.0.1:0 BERTH_SANDBOX_LISTEN=127.0.0.1:0 BERTH_EDGE_LISTEN=127.0.0.1:0
export PSQLRC=/dev/null PSQL_PAGER= PGTZ=UTC PGDATESTYLE=ISO

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

# As one would type it.
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

# Asks until the command succeeds; the seconds are for a machine that is busy.
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
  # Once begun, it goes to its end.
  trap '' INT TERM HUP
  trap - EXIT
  if [ -n "$home" ]; then
    if [ -n "$platform" ]; then
      # First this one: where it is still starting, it would start things behind the back of what follows.
      kill "$platform" 2>/dev/null || true
      wait "$platform" 2>/dev/null || true
      ./berth down >/dev/null 2>"$home/down.log" || { cat "$home/down.log" >&2; status=1; }
    fi
    rm -rf "$home"
    if [ "$status" = 0 ]; then printf '%sThe platform of this demo is stopped and removed.%s\n' "$dim" "$plain"; fi
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

# To the second, which is the part that both forms of a time share.
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
# The users of clusters must pass through it.
chmod 711 "$home"
export BERTH_HOME="$home"

say 'A platform starts, with everything it owns in one directory.'
show_command "BERTH_HOME=$home" ./berth up
./berth up >"$home/demo.log" 2>&1 &
platform=$!
wait_for 'the start of the platform' 120 is_answering

say 'A PostgreSQL cluster. Its log flows into the archive from the start.'
run ./berth postgres create shop

say 'A backup is taken by itself as soon as the cluster is ready.'
wait_for 'the first backup' 120 has_backup
run ./berth postgres backups shop

say 'Somebody stores what matters ...'
run ./berth postgres connect shop -- -qc 'create table orders (id int primary key, item text)'
run ./berth postgres connect shop -- -c "insert into orders values (1, 'anchor'), (2, 'rope'), (3, 'lantern')"
show_command ./berth postgres connect shop -- -Atc 'select clock_timestamp()'
moment=$(./berth postgres connect shop -- -Atc 'select clock_timestamp()')
printf '%s\n' "$moment"

say '... and a moment later drops it.'
run ./berth postgres connect shop -- -c 'drop table orders'

say 'Every moment of the recovery window can be restored, to the microsecond.'
wait_for 'the archive of the moment' 60 is_in_window
run ./berth postgres window shop
run ./berth postgres restore shop --to "$moment" --name shop-before

say 'The cluster with the accident was not touched; the table is still gone:'
if run ./berth postgres connect shop -- -c "$query" 2>&1; then fail 'the dropped table is still there'; fi

say 'The new cluster has every row:'
run ./berth postgres connect shop-before -- -c "$query"

found=$(./berth postgres connect shop-before -- -Atc "$query")
[ "$found" = "$expected" ] || fail "the restored rows are not the ones that were stored: $found"
printf '%sThe rows are back, in a cluster of their own.%s\n' "$green" "$plain"
