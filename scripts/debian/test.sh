#!/bin/sh
# Tests Berth on a Debian release that this host need not have: builds a system in .cache/debian, enters a copy of it with
# its own root, processes, control groups and network, clones this repository there (the last commit), starts Berth as a
# new user would, plays the sessions of the README and runs tests. Removes everything but the cached system and downloads.
# Usage: scripts/debian/test.sh trixie|bookworm [test file...]
# Without files, PART says what runs: bounded (default), all or none.
set -eu

fail() {
  echo "$*" >&2
  exit 2
}

release=${1-}
case $release in
  bookworm | trixie) shift ;;
  *) fail "Usage: make test-debian RELEASE=bookworm|trixie [PART=bounded|all|none] [TESTS='file ...']" ;;
esac
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || fail "The system is entered with its own root and control groups, which needs root."
for program in debootstrap unshare setpriv pivot_root; do
  command -v "$program" >/dev/null || fail "$program was not found: apt-get install debootstrap util-linux"
done

cache=$PWD/.cache/debian
base=$cache/$release
root=$cache/$release.run
# Other checkouts have other groups.
group=berth-debian-$release-$(printf %s "$PWD" | cksum | cut -d " " -f 1)
export cache root group release
mkdir -p "$cache/archives-$release" "$cache/npm" "$cache/pip"

# Held by every process of a run, so that a killed one is over when the lock is free.
exec 9>"$cache/$release.lock"
flock -n 9 || fail "Another run uses $base."

# Processes that were killed stay in their groups for a moment, and frozen ones of version 1 until they are thawed.
remove_groups() {
  attempts=0
  for path in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
    until [ ! -d "$path" ] || find "$path" -depth -type d -exec rmdir {} + 2>/dev/null; do
      find "$path" -name freezer.state -exec sh -c 'echo THAWED >"$1"' sh {} \; 2>/dev/null || true
      attempts=$((attempts + 1))
      if [ "$attempts" -gt 100 ]; then echo "$path still has processes." >&2 && break; fi
      sleep 0.1
    done
  done
}

# All mounts are in a namespace that ended with the processes.
clean_up() {
  status=$?
  trap '' INT TERM HUP
  trap - EXIT
  if [ -n "${running-}" ]; then
    kill -KILL "$running" 2>/dev/null || true
    wait "$running" 2>/dev/null || true
  fi
  remove_groups
  rm -rf "$root" "$base.new"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 129' HUP
trap 'exit 143' TERM

# Runs a command in namespaces that end with it, with this script, and with every process in them. In the background, so
# that a signal is handled at once.
contained() {
  setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child "$@" &
  running=$!
  code=0
  wait "$running" || code=$?
  running=''
  return "$code"
}

remove_groups
rm -rf "$root" "$base.new"
recipe=$(sha256sum <scripts/debian/build.sh)
if [ "$(cat "$base.recipe" 2>/dev/null)" != "$recipe" ] || [ ! -d "$base" ]; then
  echo "Building Debian $release in $base ..."
  rm -rf "$base"
  contained --mount-proc sh scripts/debian/build.sh "$release" "$base" "$cache/archives-$release" >"$cache/$release.log" 2>&1 || {
    tail -n 20 "$cache/$release.log" >&2
    fail "Could not build the system: see $cache/$release.log"
  }
  echo "$recipe" >"$base.recipe"
fi

cp -a --reflink=auto "$base" "$root"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
if [ -n "$(git status --porcelain)" ]; then echo "Uncommitted changes are not tested."; fi
git clone --quiet --bare . "$root/srv/berth.git"
cp scripts/debian/inside.sh "$root/srv/inside.sh"
contained sh scripts/debian/enter.sh /srv/inside.sh "$@"
