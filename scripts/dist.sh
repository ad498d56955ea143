#!/bin/sh
# Builds a release: a tarball with everything Berth needs from npm, and its checksum. The result runs on Debian 12 and 13
# without npm or a compiler. Usage: scripts/dist.sh [output directory, dist by default]
set -eu

cd "$(dirname "$0")/.."
output=${1:-dist}
case $(uname -m) in
  x86_64) arch=x64 ;;
  aarch64) arch=arm64 ;;
  *) echo "releases are built on x64 and arm64, not on $(uname -m)" >&2 && exit 1 ;;
esac
version=$(scripts/node.sh -p 'require("./package.json").version')
name=berth-$version-linux-$arch

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
root=$staging/$name
mkdir "$root"

echo "Copying sources ..."
git ls-files -z -- berth Makefile package.json package-lock.json .npmrc openapi.json openapi-sandbox.json \
  README.md ARCHITECTURE.md CHANGELOG.md LICENSE SECURITY.md docs migrations scripts src ':!src/**/*.test.ts' |
  xargs -0 cp --parents -t "$root"

echo "Copying npm packages ..."
cp -r --reflink=auto node_modules "$root/node_modules"
(cd "$root" && npm prune --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null)
# Needed only to compile native packages, and caches of the tests.
rm -rf "$root"/node_modules/node-linux-*/include "$root"/node_modules/node-linux-*/share "$root"/node_modules/.vite
find "$root/node_modules" -mindepth 1 -maxdepth 1 -type d -name '@*' -empty -delete
(cd "$root" && sha256sum <package-lock.json >node_modules/.berth-lock)

echo "Packing $name.tar.gz ..."
mkdir -p "$output"
# The same commit gives the same bytes.
tar --create --directory "$staging" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$(git log -1 --format=%ct)" "$name" | gzip --no-name >"$output/$name.tar.gz"
(cd "$output" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$output/$name.tar.gz ($(du -h "$output/$name.tar.gz" | cut -f1))"
