#!/bin/bash
# train: 1 rank on 1 node of HiPerGator
# made by: echelon submit --machine hipergator … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=hpg-turin                # it uses the fewest devices among those whose limits allow it (namezhenzhang/UF-HiPerGator-Skill: references/cluster-usage.md, which was checked against docs.rc.ufl.edu on 2026-09-18)
#SBATCH --qos=normal
#SBATCH --nodes=1                            # the number of devices of a node is not published, so the job asks for one node
#SBATCH --gres=gpu:l4:1                      # L4
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=4                    # the fair share of a device
#SBATCH --mem=32G                            # the fair share of a device, 32 GiB, times 1
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=hipergator
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
