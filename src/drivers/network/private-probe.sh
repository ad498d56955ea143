#!/bin/sh
# Tries whether this network namespace can have a private network: creates a bridge with a port and an IPv6 address, and
# loads the nftables rules from stdin. Runs in a temporary namespace. Takes no arguments.
set -e
ip link add bn type bridge
ip link add bm type veth peer name eth1
ip link set bm master bn
ip -6 addr add fdaa::1/80 dev bn nodad
nft -f -
