"""Find the first failure among many, and its cause."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from echelon.hardware import vendors
from echelon.launch import last_calls
from echelon.node import frames as node_frames
from echelon.node.channel import Message

if TYPE_CHECKING:
    from echelon.scheduler.protocol import EndReason

NEVER = float("inf")
USER_ERROR = "error in the script"
OUT_OF_MEMORY = "out of memory"
FLIPPED_BITS = "ranks have different bits"
FULL_DISK = "no space left on the disk"
OF_RANK_0 = "error of rank 0, which writes for all ranks"
COLLECTIVE_TIMEOUT = "collective timeout"
CONNECTION_LOST = "connection to another rank lost"
PORT_CLASH = "port already in use"
IMPORT_FAILURE = "import failed"
NEEDS_MPI = "Horovod's ranks need MPI to meet (echelon run -- mpirun …)"
KILLED = "killed by a signal"
CANNOT_START = "cannot be started"
NO_OUTPUT = "standard output cannot be written"
LOST_NODE = "lost node"
LOST_AGENT = "lost agent"
LOST_WARM = "lost warm process"
LOST_SUPERVISOR = "lost supervisor"
BY_SCHEDULER = "ended by Slurm"
TIME_LIMIT = "time limit"
HANG = "hang"
INTERRUPTED = "interrupted"
REFUSED = "the script cannot be scaled"
REFUSED_EXIT_CODE = 2  # the exit code of a wrong command line
UNKNOWN_PYTORCH = "echelon does not know this PyTorch"
OWN_MISTAKE = "a mistake of echelon, not of the script"
MISPLACED = "a rank is not where it was planned"
HANDED_OVER = "handed over"  # all ranks saved and ended, as ordered before the end of the job
MADE_EXIT = "ended with exit code"

# the format of train.scaling_error.tell_briefly(); an unfinished line of the script may precede it
_REFUSAL = re.compile(r"echelon\.[A-Z]\w*: ")
_UNKNOWN = r"echelon\.UnknownPyTorch: "  # pytorch.targets.told()
# numpy.save() and torch.save() do not show the error of the system: these are their words for a write that fell short
_FULL_DISK = (
    r"No space left on device|Disk quota exceeded|^OSError: \d+ requested and \d+ written|"
    r"inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing"
)
_CHAIN = re.compile(
    r"During handling of the above exception, another|The above exception was the direct cause of the following"
)
# The first row that matches the tail wins, so the symptoms of another rank's failure come last.
_TEXTS: tuple[tuple[str, str], ...] = (
    (OF_RANK_0, f"^{node_frames.OF_RANK_0}"),
    (
        OUT_OF_MEMORY,
        rf"OutOfMemoryError|({vendors.ERROR_WORDS}) (error: )?out of memory|Cuda failure (\d+ )?'out of memory'|"
        r"MemoryError|DefaultCPUAllocator: can't allocate",
    ),
    (FULL_DISK, _FULL_DISK),
    (UNKNOWN_PYTORCH, _UNKNOWN),
    (FLIPPED_BITS, r"echelon\.FlippedBits: "),
    (REFUSED, _REFUSAL.pattern),
    (NEEDS_MPI, r"Unsupported controller type, only MPI and Gloo"),  # horovod 0.28.1, of frameworks.NOT_BY_MPI
    (PORT_CLASH, r"EADDRINUSE|[Aa]ddress already in use"),
    (
        COLLECTIVE_TIMEOUT,
        r"[Ww]atchdog caught collective operation timeout|NCCL operation timed out|Timed out waiting \d+ms|"
        r"DistStoreError: Timed out|"
        r"Application timeout caused pair closure|wait timeout after \d+ms|Timeout waiting for key",
    ),
    (
        CONNECTION_LOST,
        r"Connection (closed|reset) by (remote )?peer|Connection reset|Broken pipe|DistNetworkError|ncclRemoteError|"
        r"Connection refused|remote process exited|recvValue failed|Failed to recv, got 0 bytes|Socket closed|"
        r"Software caused connection abort",
    ),
    (OWN_MISTAKE, f"^{node_frames.ECHELON}"),
    (IMPORT_FAILURE, r"^(ModuleNotFoundError|ImportError): "),
)
_OF_RANKS = re.compile(
    r"peer \[|gloo|torch[/.]distributed|NCCL|nccl|c10d|ProcessGroup|Dist(Backend|Network|Store)Error|horovod|deepspeed|"
    r"mpi4py|MPI_|tensorflow|\bjax\b|/_?echelon/"
)
"""What a traceback names where ranks talk to each other: a script may also lose a database or a web server."""
# torch adds the rank, and an unfinished progress line may precede it
_TRACEBACK = re.compile(r"(\[rank\d+\]: )?Traceback \(most recent call last\)")
_SYMPTOMS = frozenset({CONNECTION_LOST, COLLECTIVE_TIMEOUT, OF_RANK_0})
_FRAME = re.compile(r'^ *File "([^"]+)", line \d+', re.MULTILINE)
_COLLECTIVES = "/torch/distributed/"
_BACKENDS = re.compile(r"third_party/gloo|\bNCCL\b|c10d/|DistBackendError")
_UNUSED = "Parameter indices which did not receive grad"  # DistributedDataParallel's words
_REFUSALS = frozenset({REFUSED, UNKNOWN_PYTORCH})
_OWN_WORDS = _REFUSALS | {FLIPPED_BITS}  # what echelon ends a rank for, in its own words
_LOSSES = frozenset({LOST_AGENT, LOST_NODE, LOST_WARM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a run or an attempt failed."""

    cause: str
    detail: str = ""
    exit_code: int = 1
    rank: int = -1
    node: str = ""
    local_rank: int = -1
    time: float = 0.0
    tail: str = ""
    log: str = ""
    is_our_doing: bool = False
    """Whether echelon's own signal ended the rank, after another rank had failed."""

    @property
    def is_symptom(self) -> bool:
        """Say whether another rank's failure explains this one."""
        return self.cause in _SYMPTOMS

    @property
    def is_of_several(self) -> bool:
        """Say whether other ranks fail at the same moment, and tell what this one cannot."""
        return self.is_symptom or _UNUSED in self.tail

    @property
    def is_about_collectives(self) -> bool:
        """Say whether a rank failed because of what the ranks called: then it matters which one left the others."""
        is_aborted = self.cause == KILLED and self.exit_code == 128 + signal.SIGABRT
        return self.is_symptom or self.is_in_collective or (is_aborted and bool(_BACKENDS.search(self.tail)))

    @property
    def is_in_collective(self) -> bool:
        """Say whether an unknown error came from a collective: the script's mistake, or the end of another rank."""
        if self.cause != USER_ERROR:
            return False
        words = "\n".join(last_words(self.tail))
        frames = _FRAME.findall(words)
        return bool(_BACKENDS.search(words)) or (bool(frames) and _COLLECTIVES in frames[-1])


def of_rank(
    exit_message: Message, *, node: str, local_rank: int, clock_offset: float, log: str, stopped_at: float
) -> Failure:
    """Build a Failure from an agent's report of a rank that failed."""
    status = int(exit_message["status"])
    error_time = float(exit_message["error_time"])
    were_stopping = stopped_at != NEVER  # when the report came: earlier ends were not caused by us
    # others felt its end as a lost connection, and were heard first
    has_refused = were_stopping and _cause_from_text(str(exit_message["tail"])) in _OWN_WORDS
    if status in _OUR_SIGNALS and were_stopping and (has_refused or 0 < error_time < stopped_at + clock_offset):
        status = 1  # the rank's own exception came first; our signal met it while it ended
    began = (error_time or float(exit_message["time"])) - clock_offset
    cause, detail = _cause(status, exit_message)
    return Failure(
        cause=cause,
        detail=detail,
        exit_code=REFUSED_EXIT_CODE if cause in _REFUSALS else 128 - status if status < 0 else status,
        rank=int(exit_message["rank"]),
        node=node,
        local_rank=local_rank,
        time=began,
        tail=str(exit_message["tail"]),
        log=log,
        is_our_doing=were_stopping and not has_refused and (status in _OUR_SIGNALS or began >= stopped_at),
    )


def _cause(status: int, message: Message) -> tuple[str, str]:
    if message.get("why"):
        return CANNOT_START, str(message["why"])
    if status == -signal.SIGKILL and message.get("oom_kills"):
        return OUT_OF_MEMORY, "the kernel killed it for using more memory than the job has"
    from_text = _cause_from_text(str(message["tail"]))
    if status == -signal.SIGKILL and from_text == REFUSED:
        return REFUSED, ""  # the rank's child killed it, which had begun to train
    if status < 0:
        name = _signal_name(-status)
        if from_text and -status == signal.SIGABRT:
            return from_text, name
        return KILLED, f"{name}{_SIGNAL_HINTS.get(-status, '')}"
    if from_text:
        return from_text, ""
    if _TRACEBACK.search(str(message["tail"])):
        return USER_ERROR, ""
    return f"{MADE_EXIT} {status}", ""


_OUR_SIGNALS = (-signal.SIGTERM, -signal.SIGKILL)
_SIGNAL_HINTS = {
    int(signal.SIGKILL): ", sent from outside: by a person, or by the kernel when memory ran out",
    int(signal.SIGSEGV): ", an invalid memory access in native code",
    int(signal.SIGBUS): ", often a full /dev/shm",
    int(signal.SIGABRT): ", native code gave up",
}


def how(status: int) -> str:
    """Say how a process ended; `status` is its exit code, or minus the signal that killed it."""
    return f"was killed by {_signal_name(-status)}" if status < 0 else f"{MADE_EXIT} {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _cause_from_text(tail: str) -> str:
    last = "\n".join(last_words(tail)) if _TRACEBACK.search(tail) else tail
    is_between_ranks = last is tail or _OF_RANKS.search(last) is not None
    for cause, pattern in _TEXTS:
        if re.search(pattern, last, re.MULTILINE) and (is_between_ranks or cause not in _SYMPTOMS - {OF_RANK_0}):
            return cause
    if _CHAIN.search(tail) and re.search(_FULL_DISK, tail, re.MULTILINE):
        return FULL_DISK  # the script raised an error of its own, because of this one
    return ""


def first(failures: Sequence[Failure]) -> Failure:
    """Return the failure that explains the others.

    A rank that our own signal ended explains nothing. A lost connection or a timeout is a symptom of another rank's
    failure; an unknown error in a collective is, if an agent was lost. Of the other failures the earliest counts. Of
    equal failures the lowest rank counts: its output was shown.
    """
    has_lost = any(failure.cause in _LOSSES for failure in failures)
    earliest = min(
        failures,
        key=lambda one: (one.is_our_doing, one.is_symptom or (has_lost and one.is_in_collective), one.time),
    )
    if earliest.cause not in _REFUSALS:
        alike = [failure for failure in failures if _is_alike(failure, earliest)]
        return min([earliest, *alike], key=lambda failure: failure.rank)
    refused = [failure for failure in failures if _REFUSAL.search(failure.tail)]  # perhaps stopped afterwards
    first_of_all = min(refused, key=lambda failure: failure.rank)
    return replace(first_of_all, cause=earliest.cause, detail="", exit_code=REFUSED_EXIT_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the end of an attempt or a run besides the failures of its ranks."""

    ended_well: Mapping[int, float] = field(default_factory=dict)
    """Rank → time of its end, by its node's clock, corrected."""
    stop_signal: int = 0
    """The signal that asked echelon to end before the ranks had ended well."""
    called: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Rank → its last collectives, as its page has them."""
    positions: Mapping[int, str] = field(default_factory=dict)
    """Rank → where it was when the ranks were stopped."""
    nodes_down: Mapping[str, str] = field(default_factory=dict)
    """Node → what the scheduler reports of it."""
    of_scheduler: EndReason | None = None
    """The scheduler's reason for the end of the job."""


def verdict(reason: Failure | None, facts: Facts) -> Failure | None:
    """Return what explains an end that these facts are about: the failure that explains the others, or one of them."""
    if facts.stop_signal:
        saved = [reason.detail] if reason is not None and reason.cause == HANDED_OVER else []
        detail = "; ".join([_signal_name(facts.stop_signal), *saved])
        return Failure(cause=INTERRUPTED, detail=detail, exit_code=128 + facts.stop_signal)
    if reason is None:
        return None
    parted = _parted(reason, facts)
    reason = replace(reason, detail="; ".join(filter(None, (reason.detail, parted)))) if parted else reason
    left = sorted(rank for rank, at in facts.ended_well.items() if at < reason.time)
    if reason.is_symptom and left:
        who = f"rank {left[0]}" + (f" and {len(left) - 1} more" if len(left) > 1 else "")
        detail = (
            f"{who} had ended before, with exit code 0; all ranks must take the same number of steps, "
            "so no rank may decide by its own clock or files when to stop"
        )
        return replace(reason, detail=f"{reason.detail}; {detail}" if reason.detail else detail)
    down = {node: text for node, text in facts.nodes_down.items() if reason.node in ("", node)}
    if down and reason.cause in (LOST_AGENT, LOST_WARM, KILLED):  # all processes of such a node end, in any order
        texts = ", ".join(text for _, text in sorted(down.items()))
        return replace(reason, cause=LOST_NODE, detail=texts, rank=-1, tail="")
    if facts.of_scheduler is not None and may_be_of_scheduler(reason):
        cause = LOST_NODE if facts.of_scheduler.is_node_failure else BY_SCHEDULER
        return replace(reason, cause=cause, detail=facts.of_scheduler.text)
    return reason


def _parted(reason: Failure, facts: Facts) -> str:
    """Say which rank left which, as far as their last collectives tell it."""
    if not any(facts.called.values()):
        return ""
    ranks = last_calls.read(facts.called, facts.positions, facts.ended_well)
    if _UNUSED in reason.tail:
        return last_calls.unused(ranks)
    if reason.cause == HANG or reason.is_about_collectives:
        return last_calls.compare(ranks)
    is_silent = reason.cause == KILLED or reason.cause.startswith(MADE_EXIT)  # no traceback tells a line
    return last_calls.of_one(ranks, reason.rank) if is_silent else last_calls.note_of(ranks, reason.rank)


def may_be_of_scheduler(reason: Failure) -> bool:
    """Say whether the scheduler may know more: nodes or agents were lost, or a signal came from nobody here."""
    if reason.cause == INTERRUPTED:
        return reason.detail != signal.SIGINT.name  # a person's Ctrl-C, for which a scheduler may have words of its own
    by_signal = reason.exit_code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    return reason.cause in (LOST_AGENT, LOST_WARM) or (reason.cause == KILLED and by_signal)


def _is_alike(failure: Failure, other: Failure) -> bool:
    """Say whether two ranks ended with the same traceback: then the script is the cause, not the rank."""
    if failure.cause != other.cause or not _TRACEBACK.search(other.tail):
        return False
    return last_words(failure.tail) == last_words(other.tail)


def describe(failure: Failure, *, device: str, with_tail: bool, scale: str = "off") -> list[str]:
    """Return the lines that a user sees about the first failure; `scale` is the way in which the script was scaled."""
    cause = failure.cause + (f": {failure.detail}" if failure.detail else "")
    if failure.rank < 0:
        return [cause]
    place = f"local rank {failure.local_rank}" + (f", device {device}" if device else "")
    lines = [f"rank {failure.rank} on {failure.node} ({place}) failed first: {cause}"]
    if failure.cause in _REFUSALS:
        lines = [cause]  # all ranks refuse alike
    if with_tail:
        lines += ["  │ " + line for line in last_words(failure.tail)]
    if failure.cause == OUT_OF_MEMORY:
        from echelon.launch import device_memory  # most failures do not need it

        lines += ["  " + line for line in device_memory.explain(failure.tail, scale=scale)]
    if failure.cause == OWN_MISTAKE:
        lines.append("  please report it, with this file:")
    return [*lines, f"  log: {failure.log}"]


def last_words(tail: str, *, most: int = 30) -> list[str]:
    """Return the traceback if there is one, else the last lines."""
    lines = [line.rstrip("\r") for line in tail.rstrip("\n").split("\n")] if tail.strip() else []
    refusal = _from_last(_REFUSAL, lines)
    if refusal:
        return refusal
    traceback = _from_last(_TRACEBACK, lines)
    return [re.sub(r"^\[rank\d+\]: ?", "", line) for line in traceback[-most:]] or lines[-8:]


def error_line(failure: Failure) -> str:
    """Return the line of the exception that ended a rank; empty if it wrote no traceback."""
    lines = last_words(failure.tail) if has_traceback(failure) else []
    return next((line for line in reversed(lines) if line and not line.startswith((" ", "echelon: "))), "")


def has_traceback(failure: Failure) -> bool:
    return _TRACEBACK.search(failure.tail) is not None


def _from_last(pattern: re.Pattern[str], lines: list[str]) -> list[str]:
    """Return the lines from the last match of a pattern on; cut the text before the match."""
    for number in range(len(lines) - 1, -1, -1):
        if match := pattern.search(lines[number]):
            return [lines[number][match.start() :], *lines[number + 1 :]]
    return []
