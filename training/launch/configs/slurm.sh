#!/bin/bash
# One machine or several, all their GPUs. Change the lines marked with <--, then: sbatch slurm.sh
#
# One task a node, not one a GPU: the launcher on each node starts that node's processes.
#SBATCH --job-name=packtrain
#SBATCH --nodes=4                             # <--
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8                     # <--
#SBATCH --cpus-per-task=64                    # <-- all cores: Slurm gives one core otherwise, and loading starves
#SBATCH --time=24:00:00                       # <--
#SBATCH --output=%x-%j.log

set -euo pipefail

: "${DATA_CONFIG:=mix.yaml}"                  # <-- what `packtrain run` packs; its `out` on a disk that all nodes see
: "${DATA:=packed}"                           # <-- that `out`
: "${TRAIN_CONFIG:=train.yaml}"               # <-- what `packtrain train` trains
: "${RECIPE:=fsdp2.yaml}"                     # <-- `packtrain train --recipe fsdp2 > fsdp2.yaml`; or ddp, zero3
: "${PROCESSES_PER_NODE:=${SLURM_GPUS_ON_NODE:-8}}"
: "${PREPARE_SECONDS:=14400}"                 # how long the other nodes wait for the data
: "${MEET_SECONDS:=60}"                       # how long a node may come after the others
: "${PYTHON:=python}"

# The processes of ALL nodes. With those of one node here, every node would wait for ranks that are never started, or
# train by itself.
PROCESSES=$((SLURM_NNODES * PROCESSES_PER_NODE))

# Where they meet: the first node of this job, by a name that the others resolve; and a port that follows from the job's
# number, so that two jobs on one node do not meet each other; below 32768, where the system takes ports for its own
# connections. No `| head -n 1`: with pipefail, the script would end now and then because scontrol was still writing.
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${HOSTS%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))

# srun hands these to every node. Slurm copies the environment of this script, and nothing that is not exported.
export DATA_CONFIG DATA TRAIN_CONFIG RECIPE PREPARE_SECONDS MEET_SECONDS PYTHON PROCESSES MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(((${SLURM_CPUS_PER_TASK:-8} + PROCESSES_PER_NODE - 1) / PROCESSES_PER_NODE))}"
export PYTHONUNBUFFERED=1
# If the nodes have several networks, name the one that connects them; `ip -brief address` lists them.
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# What each node does. The single quotes matter: SLURM_NODEID is different on every node, so it must be expanded there,
# by this inner bash. In double quotes the batch script would expand it, on the first node, and every node would be
# number 0: two processes for each rank of the first, none for the others. The rank check would say so after a minute.
# shellcheck disable=SC2016  # not expanded here, on purpose
EACH_NODE='
set -euo pipefail
echo "node $SLURM_NODEID of $SLURM_NNODES: $(hostname), to meet at $MASTER_ADDR:$MASTER_PORT"

# Are all nodes here, each under its own number? The launcher below would wait ten minutes for a node that is missing, and
# name none. This names it after one, with what the others saw.
RANK=$SLURM_NODEID WORLD_SIZE=$SLURM_NNODES LOCAL_RANK=0 MASTER_PORT=$((MASTER_PORT + 1)) \
    PACKTRAIN_RANK_CHECK_SECONDS=$MEET_SECONDS "$PYTHON" -m packtrain.training.launch.ranks

# One node packs; the others wait until the manifest is there, and stop if the run died or takes too long. Were all to
# pack, they would hold each other up.
if [ "$SLURM_NODEID" -eq 0 ]; then
    "$PYTHON" -m packtrain.pipeline.cli run "$DATA_CONFIG"
else
    "$PYTHON" -m packtrain.pipeline.cli wait "$DATA" --timeout "$PREPARE_SECONDS"
fi

exec "$PYTHON" -m accelerate.commands.launch \
    --config_file "$RECIPE" \
    --num_machines "$SLURM_NNODES" \
    --num_processes "$PROCESSES" \
    --machine_rank "$SLURM_NODEID" \
    --main_process_ip "$MASTER_ADDR" \
    --main_process_port "$MASTER_PORT" \
    --rdzv_conf "timeout=$((2 * MEET_SECONDS))" \
    -m packtrain.pipeline.cli train "$TRAIN_CONFIG"
'

# --kill-on-bad-exit ends all nodes when one fails: else the others would wait for it until their time is up. --wait
# gives them a minute to say why. srun does not take --cpus-per-task over from sbatch by itself.
exec srun --kill-on-bad-exit=1 --wait=60 --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" bash -c "$EACH_NODE"
