#!/usr/bin/env bash
# Train a sweep on several nodes with Ray, one run for each GPU:
#   sbatch examples/cluster/slurm-sweep.sh books-tiny --out sweeps/books
# Submit it again to resume: finished runs are skipped, unfinished ones resume from their checkpoints.
#SBATCH --job-name=contextwise-sweep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --output=slurm-%j.log
set -euo pipefail

source .venv/bin/activate  # with the extra: pip install '.[sweeps]'

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist "$head" hostname -I | cut -d ' ' -f 1)
# Ray has no password by default: the job's nodes must be in a network of their own.
srun --nodes=1 --ntasks=1 --nodelist "$head" ray start --head --node-ip-address "$address" --port 6379 --block &
sleep 20
srun --nodes="$((SLURM_NNODES - 1))" --ntasks="$((SLURM_NNODES - 1))" --exclude "$head" ray start --address "$address:6379" --block &
sleep 20

contextwise plan sweep "$@" --executor ray --address "$address:6379" --set executor.gpus=1 --set executor.cpus=8
