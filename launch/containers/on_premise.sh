#!/bin/bash
# on_premise.sh server|worker|learner|actor GAME NUMBER PORT CHIEF_HOST [INDEX]: one script on every machine of a lab.
#
# Workers that exchange gradients through a server (NUMBER of workers), or actors that a learner plays (NUMBER of actors):
#   machine a:  on_premise.sh server ALE/Breakout-v5 2 7000 a      on_premise.sh learner football/1_vs_1_easy 2 7000 a
#   machine b:  on_premise.sh worker ALE/Breakout-v5 2 7000 a 0    on_premise.sh actor football/1_vs_1_easy 2 7000 a 0
#   machine c:  on_premise.sh worker ALE/Breakout-v5 2 7000 a 1    on_premise.sh actor football/1_vs_1_easy 2 7000 a 1
#
# The chief (server, learner) knows how many to expect, and gives up after --join-timeout-s if they do not come. RUN_DIR
# (default ./runs/on-premise) is a folder that all machines share; DBA3C_ARGS holds further options of `dba3c train`, on
# all machines the same. A worker has as many lanes as the chief has cores: where the workers' machines have more, say so
# (DBA3C_ARGS="--lanes 12 --envs-per-worker 12"); the first lines say how many samples make an update. A further launch
# into the same folder needs --resume in DBA3C_ARGS, beside what was there, and another DBA3C_LAUNCH_ID.
set -euo pipefail
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 5 ] || usage
role=$1 game=$2 number=$3 port=$4 chief=$5 index=${6:-}
case $number$index in *[!0-9]*) usage ;; esac
case $role in
    server | learner) rank=0 ;;
    worker | actor) [ -n "$index" ] || usage; rank=$((index + 1)) ;;
    *) usage ;;
esac
case $role in
    server | worker) roles="--servers 1 --workers $number" ;;
    learner | actor) roles="--mode central --learners 1 --actors $number" ;;
esac
export RANK=$rank WORLD_SIZE=$((number + 1)) MASTER_ADDR=$chief DBA3C_LAUNCH_ID=${DBA3C_LAUNCH_ID:-first}
# shellcheck disable=SC2086 # roles and DBA3C_ARGS are lists of words
exec dba3c train "$game" $roles --port "$port" --run-dir "${RUN_DIR:-runs/on-premise}" ${DBA3C_ARGS:-}
