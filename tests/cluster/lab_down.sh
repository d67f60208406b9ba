#!/bin/bash
# lab_down.sh DIR: ends the lab's jobs and daemons, and only those: whose pid files lie in DIR, or whose SLURM_CONF does.
dir=$(realpath -m "$1")
alive() { # a zombie is dead: it waits for whoever adopted it
    for file in "$dir"/pid/*.pid; do
        [ -s "$file" ] || continue
        state=$(ps -o stat= -p "$(cat "$file")") && [ "${state:0:1}" != Z ] && cat "$file"
    done
}
jobs() { # what a job that did not end has started
    for environ in $(grep -lzsx "SLURM_CONF=$dir/slurm.conf" /proc/[0-9]*/environ); do
        pid=${environ//[^0-9]/}
        [ "$pid" != $$ ] && [ "$pid" != "$PPID" ] && echo "$pid"
    done
}
for signal in TERM KILL; do
    for pid in $(alive); do kill -s $signal "$pid" 2>/dev/null; done
    for _ in $(seq 50); do [ -z "$(alive)" ] && break 2; sleep 0.1; done
done
for pid in $(jobs); do kill -KILL "$pid" 2>/dev/null; done
[ -z "$(alive)" ] && exit 0
echo "still there: $(alive)" >&2
exit 1
