"""What `echelon rehearse` asks of ranks: a fault at a step, and a record of what happens; each rank reads it as JSON.

ECHELON_REHEARSAL='{"fault": {"kind": "kill-rank", "rank": 1, "step": 7}}'
"""

from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_REHEARSAL"
"""The environment variable that gives a rank the order; absent where nothing is rehearsed."""

KILL_RANK, FREEZE_RANK, KILL_AGENT, DROP_NODE = "kill-rank", "freeze-rank", "kill-agent", "drop-node"
FILL_DISK, TEAR_CHECKPOINT, SIGNAL = "fill-disk", "tear-checkpoint", "signal-before-limit"
ERROR = "error"  # an exception in the script, which is no fault of a machine; our own tests order it
KINDS = (KILL_RANK, FREEZE_RANK, KILL_AGENT, DROP_NODE, FILL_DISK, TEAR_CHECKPOINT, SIGNAL)

STEPS_FILE = "steps.jsonl"
"""The steps that rank 0 computed, a line for each: its number, the time, and the process."""
FAULT_FILE = "fault.json"
"""The fault, with its rank, step and time; written just before it happens, by all ranks that it concerns."""
STATE_FILE = "state.safetensors"  # the weights and optimizer states at the end of the undisturbed run
STEP_FILE = "step-of-rank-%d.json"  # what a rank has seen in the step that it was asked to look at
END_FILE = "end.json"  # how the state at the end of a run differs from that of the undisturbed run


class Fault(NamedTuple):
    """What happens to which rank after which number of steps."""

    kind: str
    rank: int
    """For the kinds that concern a node or an agent: a rank there."""
    step: int
    delay: float = 0.0
    """The seconds between the end of the step and the fault: it may hit a step, or a save, in its middle."""


class Rehearsal(NamedTuple):
    """The order of one run."""

    fault: Fault | None = None
    folder: str = ""
    """The folder of the record; empty: nothing is recorded."""
    steps: int = 0
    """The number of steps after which all ranks end; 0: when the script ends."""
    is_nudged: bool = False
    """Whether the last bit of each gradient is changed, which shows what rounding does to this training."""
    pace: float = 0.0
    """The least seconds of a step: a save, or an order, takes longer than the steps of a small training."""
    like: str = ""
    """The state of the undisturbed run, which the state at the end is compared with; empty: this is that run."""
    scratch: str = ""
    """The script may write in this folder alone; empty: it may write anywhere."""
    original: str = ""
    """The folder of the user; `scratch` has copies of it."""
    step: int = 0
    """The step whose outputs and gradients all ranks look at, and after which they end; 0: none."""
    debugged: int = -1
    """The rank that opens a debugger at its first output that is not finite; -1: none."""


read = codec.reader(VARIABLE, Rehearsal)
