#!/bin/bash
# train: 2 ranks on 1 node of HiPerGator
# made by: echelon submit --machine hipergator … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=hpg-b200                 # as asked (namezhenzhang/UF-HiPerGator-Skill: references/cluster-usage.md, which was checked against docs.rc.ufl.edu on 2026-09-18)
#SBATCH --qos=normal
#SBATCH --nodes=1                            # as asked: 1, 2 devices on each
#SBATCH --gres=gpu:2                         # B200
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=28                   # 2 × 14: the fair share of a device
#SBATCH --mem=224G                           # the fair share of a device, 112 GiB, times 2
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=hipergator
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
