#!/bin/sh
# Builds a minimal Debian with git, make, nodejs and npm, as a new user of Berth would have. It uses the mirror, the proxy
# and the certificates of this host. It must have a mount namespace of its own.
# Usage: scripts/debian/build.sh <release> <directory> <directory of downloaded packages>
# DEBIAN_MIRROR names another mirror than the one in the apt configuration of this host.
set -eu

release=$1
directory=$2
archives=$3
fresh=$directory.new

# Prints the address of an archive that this host gets packages from.
find_mirror() {
  # shellcheck disable=SC2016 # apt-get expands it
  apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 "/$1/*\$" || true
}

write_sources() {
  echo "deb $mirror $release main"
  echo "deb $mirror $release-updates main"
  if [ -n "$security_mirror" ]; then echo "deb $security_mirror $release-security main"; fi
}

# Automatic detection of a proxy would run a program of this host.
list_apt_settings() {
  apt-config dump 2>/dev/null | grep -E '^Acquire::(https?::|Retries|Check-Valid-Until)' | grep -vi auto-detect || true
}

install_in() {
  # Services of packages must not start. Nothing else is needed for that outside of a running system.
  DEBIAN_FRONTEND=noninteractive chroot "$fresh" apt-get "$@"
}

mirror=${DEBIAN_MIRROR:-$(find_mirror debian)}
security_mirror=$(find_mirror debian-security)
proxy=$(list_apt_settings | sed -n 's/^Acquire::http::Proxy "\(.*\)";$/\1/p')
if [ -n "$proxy" ]; then export http_proxy="$proxy"; fi

rm -rf "$fresh"
# Without an address, debootstrap uses the public archive.
# shellcheck disable=SC2086 # the address is one word, or none
debootstrap --cache-dir="$archives" --variant=minbase --include=ca-certificates "$release" "$fresh" $mirror
mirror=${mirror:-$(sed -n 's/^deb \([^ ]*\) .*/\1/p' "$fresh/etc/apt/sources.list" | head -n 1)}
write_sources >"$fresh/etc/apt/sources.list"
list_apt_settings >"$fresh/etc/apt/apt.conf.d/90host"
cp -L /etc/resolv.conf "$fresh/etc/resolv.conf"
# It holds the certificates of a proxy that inspects TLS.
cp -L /etc/ssl/certs/ca-certificates.crt "$fresh/etc/ssl/certs/ca-certificates.crt"
printf '127.0.0.1 localhost berth-%s\n::1 localhost\n' "$release" >"$fresh/etc/hosts"
mount --bind "$archives" "$fresh/var/cache/apt/archives"
# The system is built again if the host crashes meanwhile.
echo force-unsafe-io >"$fresh/etc/dpkg/dpkg.cfg.d/unsafe"
install_in update -q
install_in install -q -y --no-install-recommends git make nodejs npm
rm "$fresh/etc/dpkg/dpkg.cfg.d/unsafe"
umount "$fresh/var/cache/apt/archives"
mv "$fresh" "$directory"
