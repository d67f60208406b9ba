#!/bin/bash
# Printed by: dba3c sbatch breakout --nodes 16 --learners 1 --name central_inference
# 17 = 1 learner + 16 actors
# Submit from the folder that holds .venv, shared by all nodes: sbatch --account=A --partition=P THIS_FILE
##SBATCH --account=
##SBATCH --partition=
#SBATCH --job-name=central_inference
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=24
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append

# 300 s before the limit: a checkpoint; the job goes on in its next life (docs/cluster.md).
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
# A lost node costs its workers, not the run, while enough of them are left.
#SBATCH --no-kill
#SBATCH hetjob
##SBATCH --account=
##SBATCH --partition=
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --time=04:00:00
#SBATCH --no-kill

set -eu
source "${DBA3C_VENV:-.venv}/bin/activate"
run_dir=${DBA3C_RUN_DIR:-runs/$SLURM_JOB_NAME-$SLURM_JOB_ID}
exec dba3c job --run-dir "$run_dir" -- \
    dba3c train "${DBA3C_PRESET:-breakout}" --mode central --learners 1 --env-threads "${SLURM_CPUS_PER_TASK_HET_GROUP_1:?}" --evaluators 0 --recorders 0 ${DBA3C_ARGS:-}
