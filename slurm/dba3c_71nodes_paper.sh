#!/bin/bash
# Printed by: dba3c sbatch dba3c_paper --nodes 71 --servers 4 --backup-workers 5 --evaluators 1 --recorders 1 --name dba3c_71nodes_paper
# 71 nodes × 12 cores: 71 = 4 servers + 1 evaluator + 1 recorder + 65 workers (60 gradients + 5 backup)
# 60 gradients × 6 lanes × 1 environment × 5 steps = 1,800 samples an update
# Submit from the folder that holds .venv, shared by all nodes: sbatch --account=A --partition=P THIS_FILE
##SBATCH --account=
##SBATCH --partition=
#SBATCH --job-name=dba3c_71nodes_paper
#SBATCH --nodes=71
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
    dba3c train "${DBA3C_PRESET:-dba3c_paper}" --servers 4 --reconnect-timeout-s 900 --backup-workers 5 --evaluators 1 --recorders 1 ${DBA3C_ARGS:-}
