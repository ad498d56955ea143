#!/bin/sh
# Removes a directory when standard input ends, which also happens when the test run is killed. With a command, it runs the
# command until then, ends it with SIGQUIT, and exits with its status if it exits earlier.
# Usage: guard.sh <directory> [command [argument...]]
directory=$1
shift
trap 'rm -rf "$directory"' EXIT
if [ $# = 0 ]; then
  cat >/dev/null
  exit
fi
"$@" </dev/null >/dev/null 2>&1 &
command=$!
# The shell connects background jobs to /dev/null, so the input needs another descriptor.
exec 3<&0
(
  cat <&3 >/dev/null
  kill -QUIT "$command" 2>/dev/null
) &
exec 3<&- 0</dev/null
wait "$command"
