#!/bin/sh
# The body of the health check of a service, which runs in its process group as long as it lives. It writes `healthy` or
# `unhealthy` to a file when that changes, and reports readiness on descriptor 3 with the first success. The platform puts
# a function `check` and assignments of these variables in front of it:
#   file        the file to write to
#   prefix      directory of the programs used here, with a slash; empty to find them by PATH
#   interval    seconds between checks, and first_interval until the first success
#   threshold   failures in a row that make the service unhealthy
: "${file?}" "${prefix?}" "${interval?}" "${first_interval?}" "${threshold?}"

known='' failures=0
while :; do
  if check; then
    failures=0 now=healthy
    [ -n "$known" ] || { echo >&3; exec 3>&-; }
  else
    failures=$((failures + 1)) now=$known
    [ $failures -ge "$threshold" ] && [ -n "$known" ] && now=unhealthy
  fi
  [ "$now" = "$known" ] || echo "$now" > "$file"
  known=$now
  if [ -n "$known" ]; then "${prefix}sleep" "$interval"; else "${prefix}sleep" "$first_interval"; fi
done
