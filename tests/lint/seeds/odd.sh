#!/bin/bash
#SBATCH --job-name=tools
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --time=00:30:00 # half an hour
##SBATCH --mem=60G

# Everything here is right, and unusual: patterns that begin with a dash, loops with brackets, documents in documents.
usage() { printf 'usage: %s [-n N | --number N] [--dry-run] FILE…\n' "$0"; }

number=4 dry=
files=()
while [ $# -gt 0 ]; do
  case $1 in
    -n | --number) number=$2; shift ;;
    --number=*) number=${1#*=} ;;
    -d|--dry-run)
      dry=yes
      ;;
    -h|--help) usage; exit 0 ;;
    --) shift; files+=("$@"); break ;;
    -*) usage >&2; exit 2 ;;
    *) files+=("$1") ;;
  esac
  shift
done
[[ $files ]] || { usage >&2; exit 2; }

for ((i = 0; i < number; i++)); do
  seeds[i]=$((i * 7 + 1))
done
for each do
  : "$each"
done
until ((number <= 0)); do ((number--)); done

cat > "$TMPDIR/next.sh" <<END
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=1:00:00
srun python next.py --after $SLURM_JOB_ID
END
cat > Makefile <<'END'
all:
	$(CC) -o $(OUT) main.c
END

python3 - "${files[@]}" <<'EOF_PY'
import sys
if len(sys.argv) > 1: print(f"<{sys.argv[1]}>")
EOF_PY

read -r first _ <<< "$(wc -l "${files[0]}")"
diff <(sort "${files[0]}") <(sort "${files[0]}" | uniq) > /dev/null || echo "there are $first lines, some of them twice"
[ -z "$dry" ] && time srun python train.py --seed "${seeds[0]}" -- "${files[@]}" &
wait -n || echo "it's over – “badly”" >&2
