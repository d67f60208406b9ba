#!/bin/bash
# lab_down.sh DIR: ends the lab's daemons, and only those: the ones whose pid files lie in DIR.
dir=$(realpath -m "$1")
alive() { for file in "$dir"/pid/*.pid; do [ -s "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null && cat "$file"; done; }
for signal in TERM KILL; do
    for pid in $(alive); do kill -s $signal "$pid" 2>/dev/null; done
    for _ in $(seq 50); do [ -z "$(alive)" ] && exit 0; sleep 0.1; done
done
echo "still there: $(alive)" >&2
exit 1
