# shellcheck shell=sh disable=SC2154,SC2094 # the variables are set by the including script
# Runs when the program of a machine has ended, with its code and signal: notes the end, decides whether there is a next
# life and how soon. Sourced by the supervisor in the directory of the service, which sets $directory, $service, $memory
# (the control group), $changes and $trash. It runs without the control plane.

steady_seconds=10 # a run that lasted this long was no failure to start
window_seconds=300 # failures within this time count together
kept_exits=50

# Nothing of this life is left: what buried its orphans ended with it.
rm -f lived
cd "$directory" || exit 125
id=${directory##*/}

code=$1 signal=0
if [ "$1" = 256 ]; then
  code=$((128 + $2)) signal=$2
elif [ "$1" -gt 128 ] && [ "$1" -le 192 ]; then
  signal=$(($1 - 128))
fi
read -r uptime rest < /proc/uptime
uptime=${uptime%%.*}
began=$uptime
[ -s began ] && read -r began < began

decide() {
  policy=no most=0 count=0 since=$uptime short=0 is_steady=0
  [ -s policy ] && read -r policy most < policy
  [ -s restarts ] && read -r count since short rest < restarts
  [ "$uptime" -ge "$since" ] && [ $((uptime - since)) -lt $window_seconds ] || count=0 since=$uptime
  # A start that did not come to its program is tried again, whatever the policy.
  if [ -e failed ]; then
    restarting=1
  else
    case $policy in
      always) restarting=1 ;;
      on-failure) [ "$code" != 0 ] && [ "$count" -lt "$most" ] && restarting=1 ;;
    esac
    [ $((uptime - began)) -ge $steady_seconds ] && is_steady=1 short=0
  fi
  [ $restarting = 1 ] || return
  if [ $is_steady = 0 ] || [ "$policy" != always ]; then
    short=$((short + 1))
    case $short in 1) delay=1 ;; 2) delay=2 ;; 3) delay=4 ;; 4) delay=8 ;; 5) delay=16 ;; *) delay=30 ;; esac
  fi
  echo "$((count + 1)) $since $short" > restarts
}

requested=0 restarting=0 delay=0
if [ -e stopping ] || [ -e "$service/down" ]; then
  requested=1
elif [ "$(s6-svstat -o wantedup "$service")" != true ]; then
  # The tree ends, and the next one starts it again.
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
  # A program that ended well, or was asked to end, did not miss what was taken from another process of the machine.
  [ "$code" != 0 ] && [ $requested = 0 ] && was_killed_for_memory && oom=1
  last=$((last + 1))
  echo "$last $(date +%s%3N) $code $signal $oom $requested $restarting" >> exits
  [ $((last % kept_exits)) = 0 ] && tail -n $kept_exits exits > exits.next && mv exits.next exits
  how="exited with code $code"
  [ $oom = 1 ] && how="$how, out of memory"
  [ $delay = 0 ] || how="$how, starts again in $delay s"
  printf '\035%s\n' "$how"
fi
[ $restarting = 1 ] || : > "$service/down"
echo "$last" > "$changes/$id"

# What it wrote goes away by a rename; the disk is freed when nobody waits. An ordinary user opens what is closed first.
if [ -d layer ] && ! grep -q '^keeps-root ' box.conf; then
  [ -d "$trash" ] || mkdir -m 700 "$trash"
  gone="$trash/$id-$$-$uptime"
  mv layer "$gone"
  {
    [ -O / ] || chmod -R u+rwX "$gone"
    nice -n 19 find "$gone" -delete
  } < /dev/null > /dev/null 2>&1 &
fi

[ $restarting = 1 ] || exit 125
[ $delay = 0 ] && exit 0
[ -p wake ] || mkfifo -m 600 wake
# Whoever wants it sooner, or not at all, writes to the pipe.
timeout "$delay" head -c 1 0<>wake > /dev/null 2>&1
exit 0
