#!/bin/sh
# Installs and starts Berth in a fresh Debian as a new user would, plays the sessions of the README and runs tests. What
# downloads uses the network of the host; Berth runs in a network of its own, where its names and addresses are free.
# Usage: inside.sh [test file...]
set -eu

# Every part of Berth that uses programs of the distribution, at least once with the real ones.
bounded="
  test/drivers/s6 test/drivers/host test/drivers/network test/drivers/storage test/drivers/volume
  test/drivers/box/box.test.ts test/drivers/box/checkpoint.test.ts test/drivers/box/escape.test.ts
  test/drivers/box/image.test.ts test/drivers/box/isolation.test.ts test/drivers/box/policy.test.ts
  test/drivers/box/session.test.ts test/drivers/box/start.test.ts
  test/drivers/image test/drivers/machine
  test/drivers/postgres/backup.test.ts test/drivers/postgres/pooler.test.ts test/drivers/postgres/receiver.test.ts
  test/drivers/postgres/restore.test.ts test/drivers/postgres/server.test.ts
  test/e2e/app/edge.test.ts test/e2e/app/machine.test.ts test/e2e/app/private-network.test.ts
  test/e2e/postgres/cluster.test.ts test/e2e/postgres/tooling.test.ts
  test/e2e/sandbox/exec.test.ts test/e2e/sandbox/sandbox.test.ts test/e2e/sandbox/service.test.ts
  test/e2e/demo.test.ts test/e2e/readme.test.ts
"
# Tests run programs of the checkout as other users, who cannot enter /root.
checkout=/srv/berth

say() {
  printf '\n== %s\n' "$*"
}

fail() {
  echo "$*" >&2
  exit 1
}

# Times are in tenths of a second.
now() {
  read -r uptime _ </proc/uptime
  echo "${uptime%.*}$(printf %.1s "${uptime#*.}")"
}

in_seconds() {
  echo "$(($1 / 10)).$(($1 % 10)) s"
}

install_berth() {
  say "Debian $(cat /etc/debian_version), npm $(npm --version), Node.js $(node --version)"
  start=$(now)
  git clone --quiet /srv/berth.git "$checkout"
  cd "$checkout"
  scripts/setup.sh run
  installed=$(($(now) - start))
  say "Installed in $(in_seconds $installed). Installing what only tests need ..."
  scripts/setup.sh test
}

# A mount of sysfs shows the network devices of the process that made it.
enter_own_network() {
  mkdir -p /run/cgroup
  mount --rbind /sys/fs/cgroup /run/cgroup
  mount -t sysfs sysfs /sys
  mount --rbind /run/cgroup /sys/fs/cgroup
  umount -l /run/cgroup
  ip link set lo up
  # As on any host, an address besides loopback: without one, "localhost" resolves to ::1 only, once a sandbox has IPv6.
  ip link add uplink type veth peer name uplink-peer
  ip address add 192.0.2.1/24 dev uplink
  ip link set uplink up
  ip link set uplink-peer up
}

start_berth() {
  start=$(now)
  make up >/root/up.log 2>&1 &
  platform=$!
  until ./berth status >/dev/null 2>&1; do
    kill -0 "$platform" 2>/dev/null || { cat /root/up.log >&2; fail "make up ended before the API answered."; }
    sleep 0.1
  done
  say "The API answered $(in_seconds $((installed + $(now) - start))) after the start of git clone."
  ./berth doctor || true
}

# Prints the commands of the README that contain a text, without those that need a terminal or another host.
find_session() {
  awk -v text="$1" '
    /^```sh$/ { inside = 1; block = ""; next }
    /^```$/ { if (inside && index(block, text)) printf "%s", block; inside = 0 }
    inside && !/sandbox console/ { block = block $0 "\n" }
  ' README.md
}

play_sessions() {
  for text in "berth postgres create shop" "berth sandbox create demo"; do
    session=$(find_session "$text")
    [ -n "$session" ] || fail "The README has no session with: $text"
    say "The session of the README: $text"
    sh -exc "$session"
  done
}

stop_berth() {
  kill -TERM "$platform"
  wait "$platform" 2>/dev/null || true
  ./berth down
  for name in s6-svscan s6-supervise postgres pgbouncer bwrap dnsmasq; do
    if pgrep -x "$name" >/dev/null; then fail "berth down has left a process of $name."; fi
  done
  rm -rf /var/lib/berth
}

run_tests() {
  case ${PART:-bounded} in
    all) ;;
    none) return 0 ;;
    bounded)
      # shellcheck disable=SC2086 # a list of file names
      [ $# -gt 0 ] || set -- $bounded
      ;;
    *) fail "PART is bounded, all or none." ;;
  esac
  say "Tests: ${*:-all}"
  start=$(now)
  npm test --silent -- "$@" || failed=1
  say "The tests took $(in_seconds $(($(now) - start)))."
}

if [ "${1-}" != --isolated ]; then
  install_berth
  exec unshare --net --mount sh "$0" --isolated "$installed" "$@"
fi
installed=$2
shift 2
cd "$checkout"
failed=0
enter_own_network
start_berth
play_sessions
stop_berth
run_tests "$@"
exit "$failed"
