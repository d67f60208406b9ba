#!/bin/bash
# Printed by: dba3c sbatch breakout_cluster --nodes 64 --servers 20 --backup-workers 4 --colocated-servers --name breakout_64nodes
# 64 nodes × 12 cores: 64 = 64 workers (60 gradients + 4 backup), 20 servers beside workers
# 60 gradients × 12 lanes × 1 environment × 5 steps = 3,600 samples an update
# Submit from the folder that holds .venv, shared by all nodes: sbatch --account=A --partition=P THIS_FILE
##SBATCH --account=
##SBATCH --partition=
#SBATCH --job-name=breakout_64nodes
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

# 300 s before the limit: a checkpoint; the job goes on in its next life (docs/cluster.md).
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
# A lost node costs its workers, not the run, while enough of them are left.
#SBATCH --no-kill

set -eu
source "${DBA3C_VENV:-.venv}/bin/activate"
run_dir=${DBA3C_RUN_DIR:-runs/$SLURM_JOB_NAME-$SLURM_JOB_ID}
exec dba3c job --run-dir "$run_dir" -- \
    dba3c train "${DBA3C_PRESET:-breakout_cluster}" --servers 20 --colocated-servers --reconnect-timeout-s 900 --backup-workers 4 --evaluators 0 --recorders 0 ${DBA3C_ARGS:-}
