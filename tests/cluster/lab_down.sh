#!/bin/bash
# lab_down.sh DIR: ends the lab's daemons, and only those: the ones whose pid files lie in DIR.
dir=$(realpath -m "$1")
alive() { # a zombie is dead: it waits for whoever adopted it
    for file in "$dir"/pid/*.pid; do
        [ -s "$file" ] || continue
        state=$(ps -o stat= -p "$(cat "$file")") && [ "${state:0:1}" != Z ] && cat "$file"
    done
}
for signal in TERM KILL; do
    for pid in $(alive); do kill -s $signal "$pid" 2>/dev/null; done
    for _ in $(seq 50); do [ -z "$(alive)" ] && exit 0; sleep 0.1; done
done
echo "still there: $(alive)" >&2
exit 1
