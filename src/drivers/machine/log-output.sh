#!/bin/sh
# Writes one output stream of a machine to rotated log files.
# Usage: log-output.sh <directory> [<pipe>]
# Without a pipe it reads standard input. With one it opens the pipe for reading and writing, so that it never sees the
# end of the input and no writer is ever cut off.

if [ -n "$2" ]; then
  [ -p "$2" ] || mkfifo -m 600 "$2"
  exec 0<>"$2"
fi
export TZ=UTC0
# Up to 4 files of 8 MiB. With -b the logger reads no faster than it can write, which slows down the machine alone.
exec s6-log -b -- n3 s8388608 T "$1"
