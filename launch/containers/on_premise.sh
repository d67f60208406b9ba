#!/bin/bash
# on_premise.sh server|worker GAME NUM_WORKERS PORT CHIEF_HOST [INDEX]: the same script on every machine of a lab.
#
#   machine a:  on_premise.sh server ALE/Breakout-v5 2 7000 a
#   machine b:  on_premise.sh worker ALE/Breakout-v5 2 7000 a 0
#   machine c:  on_premise.sh worker ALE/Breakout-v5 2 7000 a 1
#
# The server knows how many workers to expect, and gives up after --join-timeout-s if they do not come. RUN_DIR (default
# ./runs/on-premise) is a folder that all machines share; DBA3C_ARGS holds further options of `dba3c train`, on all
# machines the same. A further launch into the same folder needs DBA3C_ARGS=--resume and another DBA3C_LAUNCH_ID.
set -euo pipefail
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 5 ] || usage
role=$1 game=$2 workers=$3 port=$4 chief=$5 index=${6:-}
case $role in
    server) rank=0 ;;
    worker) [ -n "$index" ] || usage; rank=$((index + 1)) ;;
    *) usage ;;
esac
export RANK=$rank WORLD_SIZE=$((workers + 1)) MASTER_ADDR=$chief DBA3C_LAUNCH_ID=${DBA3C_LAUNCH_ID:-first}
# shellcheck disable=SC2086 # DBA3C_ARGS is a list of words
exec dba3c train "$game" --servers 1 --workers "$workers" --port "$port" \
    --run-dir "${RUN_DIR:-runs/on-premise}" ${DBA3C_ARGS:-}
