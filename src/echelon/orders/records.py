"""The records that `echelon prove` compares: the order to ranks, the files of a record, and its labels.

The launcher sets the variable, ranks write the files (`train/recording`), and the room `proof` reads them.
"""

from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_RECORD"
"""The environment variable that gives a rank the order; absent where nothing is recorded."""

ABOUT = "about.json"  # the file with the size of the world, the number of sharded parameters, and the loaders
INITIAL, GRADIENT, PARAMETER, BUFFER = "initial ", "gradient of ", "parameter ", "buffer "
"""Stand before the name of a tensor in its label. A state of an optimizer has the label "exp_avg of NAME"."""
KINDS = ("start", "others", "gradients", "states", "parameters")
"""The kinds of tensors, in the order in which a mistake shows in them; "others" are not trained."""
EQUAL, WITHIN, NOTHING = "equal to the bit", "equal within rounding", "nothing to compare"
"""The verdicts on runs that are equal, that differ by no more than rounding, and that show nothing by being equal."""
NUM_DIGESTS = 1 << 40  # the digest of a sample is below this number, which leaves room for sums of digests
WRITES, READS, REMOVES = "writes", "reads", "removes"  # how a rank uses a file
MOST_STRAY = 1e-3
"""The relative difference of the first losses of two runs on one rank, where samples are summed in another order; half
precision strays this far. Nothing was trained before, so a larger difference has another cause than rounding."""
STEPS_FILE, FACTS_FILE = "rank-%d.jsonl", "facts-%d.json"
"""Of a rank: numbers, a line for each step; collectives, uses of files, random draws and prints."""
ACTIVATIONS_FILE = "activations-%d.pt"
"""Of a rank: its activation trace, which has each call of a module in the first step."""
LOCAL_FILE = "local-%d-%d.pt"
"""Of a step and a rank: its gradients before ranks exchange them, by the names of parameters."""


class RecordOrder(NamedTuple):
    """The order of one run."""

    folder: str
    """The folder of the record; it exists."""
    steps: int
    """The number of steps after which a recorded script is ended."""
    batches: int = 0
    """The number of ranks whose batches one device has too, with `--per-device-batch`; 0: those of this run."""
    is_reordered: bool = False
    """Whether the samples of each batch come in another order."""
    is_nudged: bool = False
    """Whether the last bit of each gradient is changed."""
    is_double: bool = False
    """Whether the script computes in float64."""
    like: str = ""
    """The ABOUT file of the run on several ranks whose batches one process has to draw; empty: there is none."""


read = codec.reader(VARIABLE, RecordOrder)


def tensors_file(step: int, kind: str, rank: int) -> str:
    """Return the name of the file with tensors by their labels; rank 0 writes the tensors that all ranks share."""
    return f"step-{step}-{kind}-{rank}.pt" if rank else f"step-{step}-{kind}.pt"
