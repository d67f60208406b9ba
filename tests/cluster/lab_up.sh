#!/bin/bash
# lab_up.sh NODES DIR [PREFIX]: starts a Slurm of NODES nodes of 12 cores on this machine and waits (4 min) until all are idle.
# With PREFIX, node i lives in the network namespace PREFIXi at 10.78.0.i (Namespaces of param_servers.benchmarks.hosts), the controller in the
# last one, PREFIX(NODES+1). Then: export SLURM_CONF=DIR/slurm.conf
set -euo pipefail
PATH=$PATH:/usr/sbin
nodes=$1 dir=$(realpath -m "$2") prefix=${3:-} here=$(dirname "$(realpath "$0")")
mkdir -p "$dir"/{munge,state,spool,log,pid,tmp}
for i in $(seq "$nodes"); do mkdir -p "$dir/spool/node$i" "$dir/tmp/node$i"; done

[ -s "$dir/munge/key" ] || (umask 077; head -c 1024 /dev/urandom >"$dir/munge/key")
munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/pid/munged.pid" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" --num-threads=4 2>/dev/null

port=$(python3 - "$nodes" <<'END'
import os, random, socket, sys
count = int(sys.argv[1]) + 1
half = 16000 + 8000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2)  # nor may two that begin at once meet
for first in random.sample(range(half, half + 8000, 200), 40):  # another lab, or a real Slurm, may sit on some
    sockets = [socket.socket() for _ in range(count)]
    try:
        for i, s in enumerate(sockets):
            s.bind(("127.0.0.1", first + i))
        sys.exit(print(first))
    except OSError:
        continue
    finally:
        for s in sockets:
            s.close()
sys.exit("no free ports")
END
)
controller=127.0.0.1
[ -n "$prefix" ] && controller=10.78.0.$((nodes + 1))
export SLURM_CONF=$dir/slurm.conf
{
    sed -e "s#@DIR@#$dir#g; s#@HOST@#$(hostname -s)#g; s#@CONTROLLER@#$controller#g; s#@PORT@#$port#g; /^PartitionName/d" "$here/slurm.conf.in"
    for i in $(seq "$nodes"); do
        address="127.0.0.1 Port=$((port + i))"
        [ -n "$prefix" ] && address="10.78.0.$i Port=$((port + 1))"
        echo "NodeName=node$i NodeHostname=localhost NodeAddr=$address CPUs=12 RealMemory=1000 State=UNKNOWN"
    done
    grep ^PartitionName "$here/slurm.conf.in"
} >"$SLURM_CONF"
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$dir/cgroup.conf"

in_namespace() { local i=$1; shift; if [ -n "$prefix" ]; then ip netns exec "$prefix$i" "$@"; else "$@"; fi; }
in_namespace $((nodes + 1)) slurmctld -c -f "$SLURM_CONF"
for i in $(seq "$nodes"); do in_namespace "$i" slurmd -f "$SLURM_CONF" -N "node$i" & done
wait
for _ in $(seq 1200); do
    idle=$(in_namespace $((nodes + 1)) sinfo -h -t idle -o %D 2>/dev/null | awk '{n += $1} END {print n + 0}')
    [ "$idle" = "$nodes" ] && exit 0
    sleep 0.2
done
echo "only ${idle:-0} of $nodes nodes are idle after 4 minutes; see $dir/log" >&2
exit 1
