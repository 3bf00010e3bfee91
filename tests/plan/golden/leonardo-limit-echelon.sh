#!/bin/bash
# train: 1024 ranks on 256 nodes of Leonardo Booster
# made by: echelon submit --machine leonardo … train.py --epochs 3
# costs at most 8192 core-hours: 256 nodes × 4 GPUs × 1 h × 8
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=boost_usr_prod           # it bills the least among those whose limits allow it (stubbiali/hpc-scripts @017d9d9b: hpc-scripts-leonardo/src/hpc_scripts/leonardo/utils.py, https://github.com/stubbiali/hpc-scripts, a user's; a second user's repository agrees)
#SBATCH --qos=boost_qos_bprod                # stubbiali/hpc-scripts @017d9d9b: hpc-scripts-leonardo/src/hpc_scripts/leonardo/utils.py, https://github.com/stubbiali/hpc-scripts, a user's; a second user's repository agrees
#SBATCH --nodes=256                          # the fewest nodes that hold 1024 devices: a node has 4
#SBATCH --gres=gpu:4                         # A100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=32                   # 4 × 8: the fair share of a device
#SBATCH --time=01:00:00                      # as asked; at most 1-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=leonardo
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
