#!/bin/sh
# The signal handlers of the shell that waits for a confined program. `box/wait.sh` follows and sets `bwrap` to the pid.
# The supervisor signals the shell, bwrap would die of most signals, and the program is the first process of its
# namespace: the kernel drops every signal to it that it does not handle. So a signal waits until there is a handler.
forward() {
  pid=${bwrap:?}
  while kill -0 "$pid" 2>/dev/null; do
    first=$pid
    # Without namespaces the program has replaced bwrap.
    [ -n "$BERTH_BARE" ] || { first=''; read -r first _ < "/proc/$pid/task/$pid/children"; } 2>/dev/null
    catches "$first" "$1" && kill "-$1" "$first" && return
    sleep 0.01
  done
}

# Succeeds when the process blocks or catches the signal: SIGHUP is bit 0 of the masks, SIGTERM bit 14.
catches() {
  case $2 in HUP) set='*[13579bdf]' ;; INT) set='*[2367abef]' ;; QUIT) set='*[4567cdef]' ;; TERM) set='*[4567cdef]???' ;; esac
  [ -r "/proc/$1/status" ] || return
  while read -r key mask; do
    # shellcheck disable=SC2254 # a pattern
    case $key$mask in SigBlk:$set | SigCgt:$set) return 0 ;; esac
  done < "/proc/$1/status"
  return 1
}

for signal in HUP INT QUIT TERM; do
  # shellcheck disable=SC2064 # the name is known now
  trap "forward $signal" "$signal"
done
