#!/bin/sh
# Records the exit of a machine's program and applies the restart policy. It works without the control plane.
# Usage: sourced by the finish script of the s6 service, in the service's directory, with the arguments of s6: the exit
# code, or 256 and the signal number. The script sets $directory, $service, $memory (the control group), $changes and
# $trash. Exit code 125 tells s6 not to restart the program.
# shellcheck disable=SC2154 # the finish script sets the variables

steady_seconds=10 # a run that lasted this long did not fail to start
window_seconds=300 # restarts within this time count together
max_exits=50

# All processes have ended with their pid namespace, so the run script need not look for leftovers.
rm -f lived
cd "$directory" || exit 125
rm -f containers
id=${directory##*/}

code=$1 signal=0 is_killed=0
if [ "$1" = 256 ]; then
  code=$((128 + $2)) signal=$2 is_killed=1
elif [ "$1" -gt 128 ] && [ "$1" -le 192 ]; then
  signal=$(($1 - 128))
fi
read -r uptime rest < /proc/uptime
uptime=${uptime%%.*}
started_at=$uptime
[ -s began ] && read -r started_at < began

decide() {
  restart_policy=no max_retries=0 count=0 since=$uptime short=0 is_steady=0
  [ -s policy ] && read -r restart_policy max_retries < policy
  [ -s restarts ] && read -r count since short rest < restarts
  [ "$uptime" -ge "$since" ] && [ $((uptime - since)) -lt $window_seconds ] || count=0 since=$uptime
  # A start that did not reach the program is retried, whatever the policy.
  if [ -e failed ]; then
    restarting=1
  else
    case $restart_policy in
      always) restarting=1 ;;
      # The supervisor of containers applies their policies. It is started again when it was killed.
      containers) restarting=$is_killed ;;
      on-failure) [ "$code" != 0 ] && [ "$count" -lt "$max_retries" ] && restarting=1 ;;
    esac
    [ $((uptime - started_at)) -ge $steady_seconds ] && is_steady=1 short=0
  fi
  [ $restarting = 1 ] || return
  if [ $is_steady = 0 ] || [ "$restart_policy" != always ]; then
    short=$((short + 1))
    case $short in 1) delay=1 ;; 2) delay=2 ;; 3) delay=4 ;; 4) delay=8 ;; 5) delay=16 ;; *) delay=30 ;; esac
  fi
  echo "$((count + 1)) $since $short" > restarts
}

requested=0 restarting=0 delay=0
if [ -e stopping ] || [ -e "$service/down" ]; then
  requested=1
elif [ "$(s6-svstat -o wantedup "$service")" != true ]; then
  # The supervision tree is shutting down, and the next one starts the program again.
  requested=1 restarting=1
else
  decide
fi

was_killed_for_memory() {
  before=0
  [ -s oom ] && read -r before < oom
  for file in "$memory/memory.events" "$memory/memory.oom_control"; do
    [ -r "$file" ] || continue
    while read -r key value; do
      [ "$key" = oom_kill ] && [ "$value" -gt "$before" ] && return 0
    done < "$file"
  done
  return 1
}

last=0
if [ -s exits ]; then
  while read -r number rest; do last=$number; done < exits
fi
if [ ! -e failed ]; then
  oom=0
  # A program that exited normally or on request was not the process that the kernel killed.
  [ "$code" != 0 ] && [ $requested = 0 ] && was_killed_for_memory && oom=1
  last=$((last + 1))
  echo "$last $(date +%s%3N) $code $signal $oom $requested $restarting $delay" >> exits
  [ $((last % max_exits)) = 0 ] && tail -n $max_exits exits > exits.next && mv exits.next exits
  how="exited with code $code"
  [ $oom = 1 ] && how="$how, out of memory"
  [ $delay = 0 ] || how="$how, starts again in $delay s"
  printf '\035%s\n' "$how"
fi
[ $restarting = 1 ] || : > "$service/down"
echo "$last" > "$changes/$id"

# Discards the root filesystems by a rename, and deletes them in the background. Without root, files in directories that are
# not writable can only be deleted after a chmod.
number=0
for layer in layer container/*/layer; do
  [ -d "$layer" ] || continue
  grep -q '^keeps-root ' "${layer%layer}box.conf" && continue
  [ -d "$trash" ] || mkdir -m 700 "$trash"
  number=$((number + 1))
  gone="$trash/$id-$$-$uptime-$number"
  mv "$layer" "$gone"
  {
    [ -O / ] || chmod -R u+rwX "$gone"
    nice -n 19 find "$gone" -delete
  } < /dev/null > /dev/null 2>&1 &
done

[ $restarting = 1 ] || exit 125
[ $delay = 0 ] && exit 0
[ -p wake ] || mkfifo -m 600 wake
# The driver writes to the pipe to end the delay.
timeout "$delay" head -c 1 0<>wake > /dev/null 2>&1
exit 0
