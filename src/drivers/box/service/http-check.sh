#!/bin/bash
# Succeeds when a GET request to 127.0.0.1 is answered with a status of 2xx or 3xx. bash opens the connection itself,
# because a box may have no other HTTP client. Arguments: <port> <path>
exec 5<>"/dev/tcp/127.0.0.1/$1" || exit 1
printf 'GET %s HTTP/1.1\r\nHost: localhost:%s\r\nUser-Agent: berth-health\r\nConnection: close\r\n\r\n' "$2" "$1" >&5
read -r _ code _ <&5 || exit 1
case $code in 2?? | 3??) exit 0 ;; esac
exit 1
