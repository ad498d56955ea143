#!/bin/sh
# Runs bwrap, given with its arguments, and exits with its code. A signal handler comes before it, for which `bwrap` is the
# pid.
"$@" &
bwrap=$!
while :; do
  wait $bwrap
  code=$?
  kill -0 $bwrap 2>/dev/null && continue
  # If a signal interrupted the wait, that was the code of the signal, and another wait returns the one of bwrap.
  wait $bwrap 2>/dev/null
  last=$?
  [ $last = 127 ] && exit $code
  exit $last
done
