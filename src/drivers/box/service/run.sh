#!/bin/sh
# The body of the run script of a service. The platform puts assignments of the variables below in front of it, and the
# environment of the service and `exec "$@"` behind it. The arguments are the command of the service.
#   state          directory of the files that record how the service is doing
#   services       scan directory, with the services that this one waits for
#   needs          names of the services that must be ready first
#   directory      working directory, and directory_shown its name in messages
#   search         PATH to look up the command in, and command_shown its name in messages
#   health         not empty when the service has a health check
: "${state?}" "${services?}" "${needs?}" "${directory?}" "${directory_shown?}" "${search?}" "${command_shown?}" "${health?}"

# Sets `ticks` to the start time of a process, which is field 22 of its stat file. Field 2 may hold spaces.
read_start_time() {
  read -r line < "/proc/$1/stat" || return
  rest=${line##*) }
  field=3
  while [ $field -lt 22 ]; do
    rest=${rest#* }
    field=$((field + 1))
  done
  ticks=${rest%% *}
}

# Records the uptime of the system, from which the finish script computes how long the service ran.
note_clock() {
  read -r clock rest < /proc/uptime
  echo "$clock" > "$state/clock"
}

# Its exit code says that the disk is full, because nothing can be written then that says so.
disk_full=75

fail() { # <exit code> <message>
  echo "$2" > "$state/problem"
  echo "$2" >&2
  exit "$1"
}

# Fails unless the command can be executed, before the service is reported as started. Errors that only show in exec,
# such as a missing interpreter, end with the same codes.
check_command() {
  case $1 in
    */*)
      [ -e "$1" ] || fail 127 "$command_shown: not found"
      if [ ! -f "$1" ] || [ ! -x "$1" ]; then fail 126 "$command_shown: permission denied"; fi
      return
      ;;
  esac
  code=127 why='not found' rest=$search:
  while [ -n "$rest" ] && [ $code != 0 ]; do
    entry=${rest%%:*} rest=${rest#*:}
    file=${entry:-.}/$1
    [ -f "$file" ] || continue
    code=126 why='permission denied'
    [ -x "$file" ] && code=0
  done
  [ $code = 0 ] || fail $code "$command_shown: $why"
}

# When s6-supervise itself is killed, the service lives on unsupervised, and a second one would fight it for its port. The
# pid and the start time together identify the process that this script became. If it is gone, nothing is killed here; the
# finish script ends the rest of its process group.
old='' began=''
[ -s "$state/group" ] && read -r old began < "$state/group"
if [ -n "$old" ] && [ -r "/proc/$old/stat" ] && read_start_time "$old"; then
  [ "$ticks" = "$began" ] && kill -KILL "-$old"
fi
read_start_time $$
echo "$$ $ticks" > "$state/group"

: > "$state/problem"
note_clock
[ -z "$health" ] || : > "$state/health"
[ -p "$state/stderr" ] || mkfifo -m 600 "$state/stderr" 2>/dev/null
exec </dev/null 2<>"$state/stderr"
for need in $needs; do
  until s6-svok "$services/$need" && s6-svwait -U "$services/$need" 2>/dev/null; do sleep 0.1; done
done
cd "$directory" 2>/dev/null || fail 126 "chdir $directory_shown: no such directory"
check_command "$1"
count=0
[ -s "$state/restarts" ] && read -r count rest < "$state/restarts"
note_clock
# Without the record the service would run and never be reported as started.
echo "$$ $count" > "$state/begun" || fail $disk_full 'there is no space left on the disk of the sandbox'
# The environment of the service may have variables of the same names, so none of these may be exported by accident.
unset state services needs directory directory_shown search command_shown health
unset line rest field ticks clock code why entry file old began need count disk_full OLDPWD
