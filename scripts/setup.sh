#!/bin/sh
# Installs the npm packages and, on systems with apt-get, the system packages that a purpose needs.
# Prints nothing and returns quickly when nothing is missing.
# Usage: scripts/setup.sh npm|quick|check|run|test|bench
set -eu

# Debian packages by purpose. `provides` maps a package to its program or library where the names differ.
run="s6 pgbouncer libreadline8 openssl libgssapi-krb5-2 bubblewrap nftables iproute2 dnsmasq-base e2fsprogs xfsprogs"
check="shellcheck libperl-critic-perl"
test="curl procps btrfs-progs docker-registry busybox-static faketime python3-venv"
bench="wrk haproxy btrfs-progs docker-registry busybox-static skopeo"

provides() {
  case $1 in
    s6) echo s6-svscan ;;
    bubblewrap) echo bwrap ;;
    iproute2) echo ip ;;
    nftables) echo nft ;;
    dnsmasq-base) echo dnsmasq ;;
    e2fsprogs) echo mkfs.ext4 ;;
    xfsprogs) echo mkfs.xfs ;;
    btrfs-progs) echo mkfs.btrfs ;;
    libreadline8) echo libreadline.so.8 ;;
    libgssapi-krb5-2) echo libgssapi_krb5.so.2 ;;
    procps) echo ps ;;
    busybox-static) echo busybox ;;
    libperl-critic-perl) echo perlcritic ;;
    *) echo "$1" ;;
  esac
}

fail() {
  echo "$*" >&2
  exit 1
}

# Runs a command and prints its output only if it fails.
quietly() {
  if output=$("$@" 2>&1); then return 0; fi
  echo "$output" >&2
  return 1
}

has() {
  program=$(provides "$1")
  case $program in
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *.so.*)
      for library in /lib/"$program" /lib64/"$program" /usr/lib/"$program" /usr/lib64/"$program" /usr/lib/*/"$program" /lib/*/"$program"; do
        if [ -e "$library" ]; then return 0; fi
      done
      return 1
      ;;
    *) command -v "$program" >/dev/null ;;
  esac
}

list_missing() {
  for package in $wanted; do
    has "$package" || printf ' %s' "$package"
  done
}

list_programs() {
  for package in $1; do
    printf ' %s' "$(provides "$package")"
  done
}

ensure_system_packages() {
  missing=$(list_missing)
  if [ -z "$missing" ]; then return 0; fi
  if ! command -v apt-get >/dev/null; then
    fail "Berth needs these programs and libraries, which were not found:$(list_programs "$missing"). Install them with your package manager."
  fi
  if [ "$(id -u)" != 0 ]; then
    fail "Berth needs packages that are not installed. Run: $(install_command "$missing")"
  fi
  install_packages "$missing"
}

install_command() {
  printf 'sudo apt-get install -y%s' "$1"
  case "$1 " in
    *" pgbouncer "*) if is_systemd; then printf ' && sudo systemctl disable --now pgbouncer'; fi ;;
  esac
}

is_systemd() {
  [ -d /run/systemd/system ]
}

install_packages() {
  echo "Installing$1 ..."
  trap restore_policy EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  restore_policy
  forbid_service_starts
  # Package lists are missing on a fresh system and outdated on an old one. Fetching them is slow, so the first attempt
  # goes without.
  # shellcheck disable=SC2086 # $1 is a list of package names
  apt_install $1 >/dev/null 2>&1 || { quietly apt-get update -q && quietly apt_install $1; } ||
    fail "Could not install the packages$1: see the error above."
  for package in $1; do disable_services "$package"; done
  restore_policy
  trap - EXIT INT TERM HUP
  missing=$(list_missing)
  if [ -n "$missing" ]; then fail "The packages$missing are installed, but$(list_programs "$missing") cannot be found."; fi
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=60 install -q -y --no-install-recommends "$@"
}

# Some packages start a system service on installation. Berth does not use those, so a policy-rc.d forbids service
# starts during the installation. If this script is killed meanwhile, the next run restores the previous policy.
policy=/usr/sbin/policy-rc.d
saved=$policy.before-berth
mark='# Placed by Berth for the time of an installation.'

forbid_service_starts() {
  if [ -e "$policy" ] || [ -L "$policy" ]; then mv "$policy" "$saved"; fi
  printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
  chmod 755 "$policy"
}

restore_policy() {
  if [ -f "$policy" ] && grep -qxF "$mark" "$policy"; then rm -f "$policy"; fi
  if [ -e "$saved" ] || [ -L "$saved" ]; then mv "$saved" "$policy"; fi
}

# Called only for packages that this script has installed: services that were there before stay enabled.
disable_services() {
  units=$(dpkg-query -L "$1" | sed -n 's|^\(/usr\)\{0,1\}/lib/systemd/system/\([^@/]*\.\(service\|socket\|timer\)\)$|\2|p')
  if [ -n "$units" ] && command -v systemctl >/dev/null; then
    # shellcheck disable=SC2086 # $units is a list of unit names
    systemctl disable $units >/dev/null 2>&1 || true
  fi
  if ! is_systemd && [ -e "/etc/init.d/$1" ] && command -v update-rc.d >/dev/null; then
    update-rc.d "$1" disable >/dev/null 2>&1 || true
  fi
}

stamp=node_modules/.berth-lock

npm_packages_are_current() {
  scripts/node.sh --version >/dev/null 2>&1 || return 1
  # npm writes .package-lock.json last. If it is newer than the lockfile, npm was run by hand.
  if [ ! -e "$stamp" ] && [ -e node_modules/.package-lock.json ] &&
    [ -z "$(find package-lock.json -newer node_modules/.package-lock.json)" ]; then
    write_stamp 2>/dev/null || return 0
  fi
  [ "$(cat "$stamp" 2>/dev/null)" = "$(lock_hash)" ]
}

lock_hash() {
  sha256sum <package-lock.json
}

write_stamp() {
  lock_hash >"$stamp"
}

# No package needs its install script. Warnings about the Node version are hidden: they are about the system's Node, and
# Berth runs on the one in node_modules.
install_npm_packages() {
  set -- --ignore-scripts --no-audit --no-fund --loglevel=error
  if output=$(npm ci "$@" 2>&1); then return 0; fi
  case $output in
    # npm ci rejects a lockfile that lacks the packages of other architectures, which a registry mirror may not have.
    # npm install gets the same versions with the same hashes; --no-save keeps the lockfile unchanged.
    *EUSAGE*) quietly npm install --no-save "$@" ;;
    *) echo "$output" >&2 && return 1 ;;
  esac
}

ensure_npm_packages() {
  if npm_packages_are_current; then return 0; fi
  command -v npm >/dev/null || fail "npm was not found. Install it (on Debian with apt-get install npm) and run this again."
  # Concurrent installations would delete each other's files. The lock on this directory ends with the process.
  if command -v flock >/dev/null; then
    exec 9<.
    flock 9
    if npm_packages_are_current; then return 0; fi
  fi
  echo "Installing npm packages ..."
  install_npm_packages || fail "Could not install the npm packages: see the error above."
  scripts/node.sh --version >/dev/null || fail "npm has installed no usable Node.js: see the error above."
  write_stamp
}

# Generators of API clients, which the tests run. They need another TypeScript than the rest, and one needs Python.
clients=.cache/clients

ensure_client_generators() {
  wanted_clients=$(cat test/clients/package-lock.json test/clients/requirements.txt | sha256sum)
  if client_generators_are_current; then return 0; fi
  if command -v flock >/dev/null; then
    exec 9<.
    flock 9
    if client_generators_are_current; then return 0; fi
  fi
  echo "Installing the generators of API clients ..."
  rm -rf "$clients"
  mkdir -p "$clients"
  cp .npmrc test/clients/package.json test/clients/package-lock.json "$clients"
  quietly npm ci --prefix "$clients" --ignore-scripts --no-audit --no-fund --loglevel=error ||
    fail "Could not install the generators of API clients: see the error above."
  install_python_generator || fail "Could not install openapi-python-client with pip: see the error above."
  echo "$wanted_clients" >"$clients/installed"
}

client_generators_are_current() {
  [ "$(cat "$clients/installed" 2>/dev/null)" = "$wanted_clients" ]
}

install_python_generator() {
  quietly python3 -m venv "$clients/venv" || return 1
  quietly "$clients/venv/bin/pip" install --disable-pip-version-check --only-binary :all: -r test/clients/requirements.txt
}

case ${1-} in
  quick | npm) wanted="" ;;
  check) wanted=$check ;;
  run) wanted=$run ;;
  test) wanted="$run $check $test" ;;
  bench) wanted="$run $bench" ;;
  *) fail "Usage: scripts/setup.sh npm|quick|check|run|test|bench" ;;
esac

cd "$(dirname "$0")/.."
# The PATH of ordinary users lacks the sbin directories.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
ensure_system_packages
ensure_npm_packages
if [ "${1-}" = test ]; then ensure_client_generators; fi
