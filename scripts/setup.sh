#!/bin/sh
# Makes present what a purpose needs: npm packages and, on Debian and its relatives, system packages.
# Silent and quick when nothing is missing.
set -eu

# Debian packages per purpose. A package whose program has another name is listed in `provides` as well.
run="s6 pgbouncer libreadline8 openssl libgssapi-krb5-2 bubblewrap nftables iproute2 dnsmasq-base e2fsprogs"
test="curl procps btrfs-progs xfsprogs docker-registry busybox-static"
bench="wrk haproxy xfsprogs docker-registry busybox-static skopeo"

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
    *) echo "$1" ;;
  esac
}

fail() {
  echo "$*" >&2
  exit 1
}

# Shows what a command printed only when it fails.
quietly() {
  if output=$("$@" 2>&1); then return 0; fi
  echo "$output" >&2
  return 1
}

has() {
  program=$(provides "$1")
  case $program in
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
  for package in $*; do
    printf ' %s' "$(provides "$package")"
  done
}

ensure_system_packages() {
  missing=$(list_missing)
  if [ -z "$missing" ]; then return 0; fi
  if ! command -v apt-get >/dev/null; then
    fail "Berth needs these programs and libraries, which were not found:$(list_programs "$missing"). Install them with the package manager of this system."
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
  # The lists of a fresh or old system know nothing or versions that are gone; only then they are fetched.
  # shellcheck disable=SC2086 # a list of words
  apt_install $1 >/dev/null 2>&1 || { quietly apt-get update -q && quietly apt_install $1; } ||
    fail "The packages$1 could not be installed; the reason stands above."
  for package in $1; do disable_services "$package"; done
  restore_policy
  trap - EXIT INT TERM HUP
  still=$(list_missing)
  if [ -n "$still" ]; then fail "The packages$still are installed, but$(list_programs "$still") cannot be found."; fi
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=60 install -q -y --no-install-recommends "$@"
}

# Some packages start a service of their own on installation. This script asks nobody to run one, so a policy forbids
# it for the time of the installation. What a killed run left behind is put right by the next one.
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

# Only for packages that were not there before: a service that somebody runs already is theirs.
disable_services() {
  units=$(dpkg-query -L "$1" | sed -n 's|^\(/usr\)\{0,1\}/lib/systemd/system/\([^@/]*\.\(service\|socket\|timer\)\)$|\2|p')
  if [ -n "$units" ] && command -v systemctl >/dev/null; then
    # shellcheck disable=SC2086 # a list of words
    systemctl disable $units >/dev/null 2>&1 || true
  fi
  if ! is_systemd && [ -e "/etc/init.d/$1" ] && command -v update-rc.d >/dev/null; then
    update-rc.d "$1" disable >/dev/null 2>&1 || true
  fi
}

stamp=node_modules/.berth-lock

npm_packages_are_current() {
  [ -x node_modules/.bin/node ] || return 1
  # npm writes its own list last; one that is not older than the lockfile was made from it by hand.
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

# No package needs its install script, and warnings about the version of Node concern one that Berth does not use.
install_npm_packages() {
  options="--ignore-scripts --no-audit --no-fund --loglevel=error"
  # shellcheck disable=SC2086 # a list of words
  if output=$(npm ci $options 2>&1); then return 0; fi
  case $output in
    # npm ci refuses a lockfile without the packages of other systems, which a registry may lack. This installs
    # the same versions with the same hashes and leaves the lockfile as it is.
    # shellcheck disable=SC2086 # a list of words
    *EUSAGE*) quietly npm install --no-save $options ;;
    *) echo "$output" >&2 && return 1 ;;
  esac
}

ensure_npm_packages() {
  if npm_packages_are_current; then return 0; fi
  command -v npm >/dev/null || fail "npm was not found. Install Node.js 20 or newer, which brings it, and run this again."
  # Two of these at once would delete each other's files. The lock is on this directory and ends with the process.
  if command -v flock >/dev/null; then
    exec 9<.
    flock 9
    if npm_packages_are_current; then return 0; fi
  fi
  echo "Installing npm packages ..."
  install_npm_packages || fail "The npm packages could not be installed; the reason stands above."
  [ -x node_modules/.bin/node ] || fail "Berth runs on Linux on x64 and arm64, and this is $(uname -s) on $(uname -m)."
  write_stamp
}

case ${1-} in
  quick | npm) wanted="" ;;
  check) wanted="" ;;
  run) wanted=$run ;;
  test) wanted="$run $test" ;;
  bench) wanted="$run $bench" ;;
  *) fail "Usage: scripts/setup.sh npm|quick|check|run|test|bench" ;;
esac

cd "$(dirname "$0")/.."
# Programs for administrators are not in the search path of ordinary users.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
ensure_system_packages
ensure_npm_packages
