#!/bin/bash
# Printed by: dba3c sbatch breakout_cluster --nodes 64 --servers 12 --scaling --name scaling_array
# 64 nodes × 12 cores: 64 = 64 workers (64 gradients + 0 backup), 12 servers beside workers
# 64 gradients × 12 lanes × 1 environment × 32 steps / 8 minibatches = 3,072 samples an update
# Submit from the folder that holds .venv, shared by all nodes: sbatch --account=A --partition=P THIS_FILE
##SBATCH --account=
##SBATCH --partition=
#SBATCH --job-name=scaling_array
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --time=04:00:00
#SBATCH --array=0-6
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append

# 180 s before the limit: a checkpoint; the job goes on in its next life (docs/cluster.md).
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
# A lost node costs its workers, not the run, while enough of them are left.
#SBATCH --no-kill

set -eu
source "${DBA3C_VENV:-.venv}/bin/activate"
# Task i of the array runs on 2^i nodes and gives the others back at once.
nodes=$((1 << SLURM_ARRAY_TASK_ID))
workers=$((nodes * 1))
servers=$((workers < 12 ? workers : 12))
run_dir=${DBA3C_RUN_DIR:-runs/$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID}/nodes-$nodes
exec python -m launch.slurm.job --run-dir "$run_dir" --nodes "$nodes" -- \
    dba3c train "${DBA3C_PRESET:-breakout_cluster}" --workers "$workers" --servers "$servers" --colocated-servers --backup-workers 0 --evaluators 0 --recorders 0 ${DBA3C_ARGS:-}
