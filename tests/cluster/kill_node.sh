#!/bin/bash
# kill_node.sh NODE DIR: the sudden death of a node: its slurmd, its slurmstepds and all their tasks, with SIGKILL.
node=$1 dir=$(realpath -m "$2")
tree() { for child in $(pgrep -P "$1"); do tree "$child"; echo "$child"; done; }
victims=$(cat "$dir/pid/slurmd.$node.pid")
for stepd in $(pgrep -x slurmstepd); do
    for task in $(pgrep -P "$stepd"); do
        if tr '\0' '\n' <"/proc/$task/environ" 2>/dev/null | grep -qx "SLURMD_NODENAME=$node"; then
            victims="$victims $stepd $(tree "$stepd")"
            break
        fi
    done
done
# shellcheck disable=SC2086 # a list of numbers
kill -KILL $victims
