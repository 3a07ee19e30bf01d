#!/bin/bash
# Slurm: sbatch job.sh, from the active environment, in a folder that the nodes share.
#SBATCH --job-name=arraycomm
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
set -euo pipefail
umask 077
ARRAYCOMM_SECRET=$(openssl rand -hex 32)
export ARRAYCOMM_SECRET # srun passes it to the ranks
srun --kill-on-bad-exit=0 python program.py
