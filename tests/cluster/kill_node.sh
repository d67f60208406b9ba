#!/bin/bash
# kill_node.sh NODE DIR: the sudden death of a node of the lab in DIR: its slurmd, its slurmstepds and all their tasks, with
# SIGKILL. `slurmd -f DIR/slurm.conf -N NODE` brings it back.
node=$1 dir=$(realpath -m "$2")
tree() { local child; for child in $(pgrep -P "$1"); do tree "$child"; echo "$child"; done; }
belongs() { tr '\0' '\n' <"/proc/$1/environ" 2>/dev/null | awk -v n="SLURMD_NODENAME=$node" -v c="SLURM_CONF=$dir/slurm.conf" \
    '$0 == n {a = 1} $0 == c {b = 1} END {exit !(a && b)}'; }
victims=$(cat "$dir/pid/slurmd.$node.pid")
for stepd in $(pgrep -x slurmstepd); do
    for task in $(pgrep -P "$stepd"); do
        if belongs "$task"; then
            victims="$victims $stepd $(tree "$stepd")"
            break
        fi
    done
done
# shellcheck disable=SC2086 # a list of numbers
kill -KILL $victims
