#!/bin/sh
# The body of the finish script of a service, which s6 runs after each exit. It ends the rest of the process group, writes
# the exit code to both logs, and waits before the next start. The arguments are the exit code, or 256 and a signal. The
# platform puts an assignment of `state` in front of it, the directory of the files that record how the service is doing.
: "${state?}"

steady_seconds=10 # a run of this length does not count as a failure to start

[ -p "$state/stderr" ] || mkfifo -m 600 "$state/stderr" 2>/dev/null
exec </dev/null 2<>"$state/stderr"
if [ "$1" = 256 ]; then code=$((128 + $2)); else code=$1; fi
# The supervisor forgets the code when it ends itself, as with the sandbox.
echo "$code" > "$state/ended"
wanted=$(s6-svstat -o wantedup . 2>/dev/null)
count=0 short=0 delay=0 problem=
if [ "$wanted" = true ]; then
  [ -s "$state/restarts" ] && read -r count short rest < "$state/restarts"
  [ -s "$state/problem" ] && read -r problem < "$state/problem"
  read -r clock rest < /proc/uptime
  begun=$clock
  [ -s "$state/clock" ] && read -r begun < "$state/clock"
  count=$((count + 1))
  if [ $((${clock%%.*} - ${begun%%.*})) -ge $steady_seconds ] && [ -z "$problem" ]; then
    short=0
  else
    short=$((short + 1))
    case $short in 1) delay=1 ;; 2) delay=2 ;; 3) delay=4 ;; 4) delay=8 ;; 5) delay=16 ;; *) delay=30 ;; esac
  fi
  echo "$count $short $delay $problem" > "$state/restarts"
fi

# Children may hold ports and files. They have two seconds to end by themselves.
read -r group rest < "$state/group"
case $group in *[!0-9]* | 0 | 1 | "") group= ;; esac
if [ -n "$group" ] && kill -TERM "-$group" 2>/dev/null; then
  turns=0
  while [ $turns -lt 100 ] && kill -0 "-$group" 2>/dev/null; do
    sleep 0.02
    turns=$((turns + 1))
  done
  kill -KILL "-$group" 2>/dev/null
fi

# The newline ends an incomplete last line. Where it makes an empty line instead, the log reader drops that.
printf '\n\036exited with code %s\n' "$code"
printf '\n\036exited with code %s\n' "$code" >&2
[ "$delay" = 0 ] && exit 0
# The time of the next start is computed from the modification time of this file.
echo "$count $short $delay $problem" > "$state/restarts"
[ -p "$state/wake" ] || mkfifo -m 600 "$state/wake" 2>/dev/null
# A byte in this pipe ends the wait early, for a start or a stop.
timeout "$delay" head -c 1 0<>"$state/wake" >/dev/null 2>&1
exit 0
