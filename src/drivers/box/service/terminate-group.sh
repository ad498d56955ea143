#!/bin/sh
# Sends SIGTERM to all members of a process group except its leader, which the supervisor signals: a shell that waits for
# a child only acts on the signal when the child has ended. Arguments: <process group>
for file in /proc/[0-9]*/stat; do
  read -r line < "$file" || continue
  pid=${file#/proc/} pid=${pid%/stat}
  # After the name in parentheses come the state, the parent and the process group.
  fields=${line##*) } fields=${fields#* } fields=${fields#* } group=${fields%% *}
  [ "$group" = "$1" ] && [ "$pid" != "$1" ] && kill -TERM "$pid"
done 2>/dev/null
