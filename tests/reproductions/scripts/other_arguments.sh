#!/bin/sh
# A run is continued with another batch size, and with another learning rate, on the command line.
rm -rf run-a run-b run-c
OMP_NUM_THREADS=1 timeout 12 echelon run -n 2 --run-dir run-a --checkpoint-every 10steps --timeout 7 other_arguments.py 16 0.1 2>/dev/null | tail -1
for args in "8 0.1" "16 0.0001"; do
  rm -rf run-b run-d; cp -r run-a run-d
  echo "== continued with $args"
  OMP_NUM_THREADS=1 echelon run -n 2 --run-dir run-b --resume run-d --checkpoint-every 10steps other_arguments.py $args 2>&1 | grep -v "makes the others\|one rank alone\|is waiting" | tail -8
done
