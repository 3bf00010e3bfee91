#!/usr/bin/env bash
# On the workstation under the desk: no Slurm, two cards.
set -eu

here=$(dirname "$0")
OUT=${OUT:-$here/out}
EXTRA=(--wandb off --tag "night run")

if [ ! -d "$OUT" ]; then
  mkdir -p "$OUT"
fi

while pgrep -u "$USER" -f resnet.py > /dev/null; do
  sleep 60
done

tensorboard --logdir "$OUT" --host 127.0.0.1 --port 6006 &
board=$!

torchrun \
  --standalone \
  --nproc_per_node=2 \
  "$here/resnet.py" --data "$HOME/data" \
  --out "$OUT" "${EXTRA[@]}" 2>&1 | tee "$OUT/log.txt"

kill $board
