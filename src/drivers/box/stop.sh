#!/bin/sh
# The SIGTERM handler of the shell that waits for the bwrap of a sandbox. `wait.sh` follows it and sets `bwrap` to the pid.
# bwrap would die of the signal and take all processes with it, while the first process inside stops its services in
# order. That one gets the signal once it handles it: earlier the kernel drops signals to the first process of a namespace.
stop() {
  pid=${bwrap:?}
  while kill -0 "$pid" 2>/dev/null; do
    first=''
    read -r first _ < "/proc/$pid/task/$pid/children"
    handles_term "$first" && kill -TERM "$first" && return
    sleep 0.01
  done
}

# Succeeds when SIGTERM, which is bit 14 of the masks, is blocked or caught by the process.
handles_term() {
  [ -r "/proc/$1/status" ] || return
  while read -r key mask; do
    case $key$mask in SigBlk:*[4567cdef]??? | SigCgt:*[4567cdef]???) return 0 ;; esac
  done < "/proc/$1/status"
  return 1
}

trap stop TERM
