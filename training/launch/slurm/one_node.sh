#!/bin/bash
# One machine, all its GPUs. Change the lines marked with <--, then: sbatch one_node.sh
#
# One task, not one a GPU: torchrun starts the processes itself, and gives each its rank.
#SBATCH --job-name=packtrain
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8                     # <--
#SBATCH --cpus-per-task=64                    # <-- all cores: Slurm gives one core otherwise, and loading starves
#SBATCH --time=24:00:00                       # <--
#SBATCH --output=%x-%j.log

set -euo pipefail

: "${DATA_CONFIG:=mix.yaml}"                  # <-- what `packtrain run` packs
: "${TRAIN_CONFIG:=train.yaml}"               # <-- what `packtrain train` trains
: "${PROCESSES_PER_NODE:=${SLURM_GPUS_ON_NODE:-8}}"
: "${PYTHON:=python}"

# Threads of the numeric libraries, a share of the cores for each process: unset, each starts one for every core.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(((${SLURM_CPUS_PER_TASK:-8} + PROCESSES_PER_NODE - 1) / PROCESSES_PER_NODE))}"

# Python writes at once, so that the log has the last words of a process that was killed.
export PYTHONUNBUFFERED=1

# Says what is wrong with this machine before hours are spent on it; `|| true` if you know better.
"$PYTHON" -m packtrain.pipeline.cli doctor

# Packs what is not packed yet; where all is there it says so within a second.
"$PYTHON" -m packtrain.pipeline.cli run "$DATA_CONFIG"

# --standalone chooses a free port, so that two jobs on one machine do not meet each other.
exec "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node "$PROCESSES_PER_NODE" \
    -m packtrain.pipeline.cli train "$TRAIN_CONFIG"
