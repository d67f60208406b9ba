#!/bin/bash
# netns.sh up PREFIX N RATE | down PREFIX N: N network namespaces PREFIX1..N at 10.78.0.i on a bridge, each limited to
# RATE (e.g. 100mbit) both ways.
set -euo pipefail
PATH=$PATH:/usr/sbin
what=$1 prefix=$2 n=$3 rate=${4:-} bridge=${2}br
if [ "$what" = down ]; then
    for i in $(seq "$n"); do ip netns del "$prefix$i" 2>/dev/null || true; ip link del "${prefix}v$i" 2>/dev/null || true; done
    ip link del "$bridge" 2>/dev/null || true
    exit 0
fi
ip link add "$bridge" type bridge
ip link set "$bridge" up
for i in $(seq "$n"); do
    ip netns add "$prefix$i"
    ip link add "${prefix}v$i" type veth peer name eth0 netns "$prefix$i"
    ip link set "${prefix}v$i" master "$bridge" up
    ip -n "$prefix$i" link set lo up
    ip -n "$prefix$i" addr add "10.78.0.$i/24" dev eth0
    ip -n "$prefix$i" link set eth0 up
    ip netns exec "$prefix$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 64k latency 50ms
    tc qdisc add dev "${prefix}v$i" root tbf rate "$rate" burst 64k latency 50ms
done
