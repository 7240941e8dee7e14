#!/usr/bin/env bash
# Train a recipe on the GPUs of one node, through time limits and preemption:
#   sbatch examples/cluster/slurm.sh contextlm-nano --set training.tokens=1_000_000_000 --out runs/large
#
# SLURM sends SIGTERM two minutes before the time limit and at a preemption. Contextwise then saves a checkpoint and ends with
# status 143, the job is put back into the queue, and the same command resumes. Status 2 (the input is at fault) is not retried.
#SBATCH --job-name=contextwise
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -uo pipefail

# Once, on a node with a network:  python -m venv .venv && .venv/bin/pip install torch . && .venv/bin/contextwise prepare …
source .venv/bin/activate

stopping=
torchrun --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" -m contextwise train "$@" &
launcher=$!
trap 'stopping=yes; kill -TERM "$launcher"' TERM
wait "$launcher"  # a signal ends the wait, not the launcher
status=$?
if [ -n "$stopping" ]; then
    wait "$launcher"  # until all processes have saved
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
