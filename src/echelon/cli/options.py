"""The options of `echelon run` as rows, torchrun's among them, and the one scanner that reads them.

The scanner stops at the script, so that nothing after it is ever interpreted: it reaches the script byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from echelon.cli import readers
from echelon.cli.readers import one_of, whole
from echelon.errors import UsageError
from echelon.host import terminal
from echelon.orders.scale import KINDS
from echelon.plan.exchange import SCALES
from echelon.spec import LIBRARIES

LEFT = 31  # the column of a help text at which the meanings of options begin


*_FIRST_KINDS, _LAST_KIND = KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its spellings, its value, and its meaning here."""

    names: tuple[str, ...]
    value: str = ""
    """The name of the value in the help; empty for a flag."""
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    """The choices for the value, or some of them; shells complete them."""
    takes: str = ""
    """What else a shell completes: "file", "folder", "script", "program" or "run"."""
    is_list: bool = False
    """Whether the value may be several choices, separated by commas."""
    help: str = ""
    no_meaning: str = ""
    """For an option of torchrun without an effect here: the reason."""
    trains: bool = False
    """Whether the option changes the training: `echelon prove` has it too."""
    fills: str = ""
    """The field of the job or the request that the option sets; empty: other code reads it."""
    reads: Callable[[str, str], Any] = lambda text, _option: text
    """Turns the text of the value into that of the field, by the name of the option; see `readers`."""
    sets: Any = True
    """What a flag sets the field to."""
    repeats: bool = False
    """Whether the field has all values, in a tuple; else the last one counts."""

    @property
    def key(self) -> str:
        return self.names[-1].lstrip("-").replace("-", "_")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the choices; a callable reads them from files."""
        return self.choices() if callable(self.choices) else self.choices

    def read(self, texts: Sequence[str]) -> Any:
        if not self.value:
            return self.sets
        values = [self.reads(text, self.names[-1]) for text in (texts if self.repeats else texts[-1:])]
        return tuple(values) if self.repeats else values[0]


LAUNCHES = ("warm", "exec", "tasks")
VISIBLE = ("all", "own")
BINDS = ("auto", "strict", "off")
LEARNING_RATE_RULES = ("linear", "sqrt")
CHECKS = ("fast", "full", "off")
WE_MEET = "echelon finds the nodes by itself"
_OWN_LOGS = "every rank has its own log in the run directory"
_FROM_0, _FROM_1 = partial(whole, least=0), partial(whole, least=1)


def _choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    return partial(one_of, choices=choices, command="run")


OPTIONS: tuple[Option, ...] = (
    Option(names=("-n", "--gpus-per-node", "--nproc-per-node"), value="N", fills="ranks_per_node", reads=readers.ranks_per_node, choices=("auto", "cpu", "gpu"), help="ranks per node, or gpu or cpu (default: the devices, or 1)"),
    Option(names=("-N", "--nodes", "--nnodes"), value="N", fills="num_nodes", reads=readers.nodes, help="nodes of the allocation to use (default: all), or MIN:MAX: continue with MIN if nodes fail"),
    Option(names=("--hosts",), value="A,B,…", help="start the ranks on these hosts by ssh: a,b, or a:2,b:2 with the ranks of each"),
    Option(names=("--spares",), value="N", fills="num_spares", reads=_FROM_0, help="further nodes of the allocation, which take the place of lost ones"),
    Option(names=("--cpus-per-task",), value="N", fills="cpus_per_rank", reads=_FROM_1, help="CPUs of each rank (default: its share of the node's)"),
    Option(names=("--launch",), value="HOW", choices=LAUNCHES, fills="launch", reads=_choice(LAUNCHES), help="warm: import once, then fork; exec: a process each; tasks: a Slurm task each"),
    Option(names=("--visible",), value="WHICH", choices=VISIBLE, fills="visible", reads=_choice(VISIBLE), help="all: each rank sees the node's devices; own: only its own, as device 0"),
    Option(names=("--share-devices",), fills="share_devices", help="allow more ranks than devices"),
    Option(names=("--scale",), value="HOW", choices=SCALES, help=f"scale a script for one device with {', '.join(_FIRST_KINDS)} or {_LAST_KIND}, or a class of FILE.py:CLASS; off; "
        "auto: decide by the script; auto-fit: trace it, and take the simplest that fits into memory"),
    Option(names=("--no-check",), fills="checks_first_step", sets=False, help="scaled: do not compare the first step and later steps with one device"),
    Option(names=("--shard-eval",), fills="shards_evaluation", help="scaled: share evaluation too", trains=True),
    Option(names=("--sync-bn",), fills="syncs_batch_norm", help="scaled: BatchNorm over the whole batch, as on one device", trains=True),
    Option(names=("--same-random",), fills="draws_all", help="scaled: also draw the expensive random numbers as on one device", trains=True),
    Option(names=("--exact",), value="V", fills="num_shards", reads=readers.shards, help="scaled: the same bits on 1, 2, 4 … V ranks", trains=True),
    Option(names=("--watch-bits",), fills="watches_bits", help="scaled: compare the bits of weights, gradients and states on all ranks (on with --exact)"),
    Option(names=("--per-device-batch",), fills="keeps_batch", help="scaled: each rank gets the script's batch, so the global batch is larger", trains=True),
    Option(names=("--scale-lr",), value="RULE", choices=LEARNING_RATE_RULES, fills="learning_rate", reads=_choice(LEARNING_RATE_RULES), help="scale the learning rate with this batch: linear or sqrt", trains=True),
    Option(names=("--sync-every",), value="H", help="scaled: each rank trains alone; average the weights every H steps", trains=True),
    Option(names=("--outer-lr",), value="LR", help="with --sync-every: step along the mean progress instead (DiLoCo: 0.7)", trains=True),
    Option(names=("--outer-momentum",), value="M", help="with --sync-every: the Nesterov momentum of that step (DiLoCo: 0.9)", trains=True),
    Option(names=("--async",), help="with --sync-every: do not wait; use an average one meeting later", trains=True),
    Option(names=("--compress",), value="HOW", choices=("bf16", "fp16", "powersgd"), help="scaled: exchange gradients as bf16, fp16 or powersgd[:RANK[:STEP]]", trains=True),
    Option(names=("--bucket-mb",), value="N", help="scaled: exchange gradients N MB at a time (default: the fastest size here)", trains=True),
    Option(names=("--check",), value="HOW", choices=CHECKS, help="check the nodes: fast, full or off (default: fast, while the ranks run)"),
    Option(names=("--exclude-bad",), help="with --check: continue without the nodes that have an error"),
    Option(names=("--bind",), value="HOW", choices=BINDS, fills="bind", reads=_choice(BINDS), help="auto: each rank on the cores nearest to its device; strict: or stop; off"),
    Option(names=("--global-batch",), value="N", fills="global_batch", reads=_FROM_1, help="divide N samples: sets ECHELON_BATCH_PER_RANK, and {batch_per_rank} in the arguments"),
    Option(names=("--container",), value="IMAGE", takes="file", fills="container", reads=readers.image, help="run the ranks in this Singularity or Apptainer image"),
    Option(names=("--container-bind",), value="SRC[:DST]", takes="folder", fills="container_binds", repeats=True, help="make a folder visible in the container, as Singularity's --bind; may be repeated"),
    Option(names=("--env",), value="K=V", fills="environ", reads=readers.pair, repeats=True, help="set a variable in every rank; may be repeated"),
    Option(names=("--run-dir",), value="DIR", takes="folder", fills="run_directory", reads=readers.run_directory, help="the directory of this run (default: a new one in echelon-runs/)"),
    Option(names=("--track",), value="NAME[:WHERE]", choices=tuple(LIBRARIES), fills="trackers", reads=readers.tracker, repeats=True, help="write losses, times, memory and arguments to tensorboard, mlflow or wandb; may be repeated"),
    Option(names=("--stage-data",), value="SRC[=DST]", takes="folder", fills="stage_data", reads=readers.stage_request, repeats=True, help="copy a folder or file to each node's own disk before the start, and let the script use the copy; shard:SRC: each node its ranks' files; may be repeated"),
    Option(names=("--stage-env",), fills="stages_software", help="copy the environment of this Python, or the image of --container, there too, and start the ranks from the copy"),
    Option(names=("--show",), value="RANKS", choices=("0", "all", "none"), fills="show", reads=readers.ranks, help="show the output of these ranks live: 0 (default), 0,3, 4-7, all or none"),
    Option(names=("--debug",), value="RANK", fills="debug", reads=_FROM_0, help="connect this rank to the keyboard, for breakpoint(), and show only its output"),
    Option(names=("--timeout",), value="TIME", fills="timeout_seconds", reads=readers.seconds, help="end the run after 90 (seconds), 10m or 2h, with exit code 124"),
    Option(names=("--time",), value="TIME", fills="timeout_seconds", reads=readers.slurm_seconds, help="the same in Slurm's format: 30 (minutes), 1:30:00 or 2-00:00:00"),
    Option(names=("--hang-timeout",), value="TIME", choices=("auto", "off"), fills="hang_timeout", reads=readers.hang_timeout, help="end a run that hangs: no step and no output for 300 (seconds), 10m or 2h; auto: learn it from the steps (default); off"),
    Option(names=("--checkpoint-every",), value="EVERY", help="save the training of an unchanged script every 10m, 2h or 200steps"),
    Option(names=("--keep-checkpoints",), value="N", help="keep the latest N checkpoints (default: 3)"),
    Option(names=("--resume",), value="RUN", takes="run", help="continue from the latest checkpoint of a run"),
    Option(names=("--no-pool",), fills="uses_pool", sets=False, help="let this run import by itself, although a pool of its nodes is there (see echelon pool)"),
    Option(names=("--max-restarts",), value="N", fills="max_restarts", reads=_FROM_0, help="start all ranks again after a failure, at most N times without progress"),
    Option(names=("--dry-run",), help="print the plan and stop"),
    Option(names=("--explain-hooks",), help="print what echelon replaces in PyTorch, Python and libraries, and why; run nothing"),
    Option(names=("--json",), help="with --dry-run or --explain-hooks: print JSON"),
    Option(names=("-m", "--module"), help="SCRIPT is a module, as after python -m"),
    Option(names=("--no-python",), help="SCRIPT is any program, as after --"),
    Option(names=("-h", "--help"), help="show this"),
    Option(names=("--node-rank",), value="K", fills="node_rank", reads=_FROM_0, help="this node's number, if you start each node by hand"),
    Option(names=("--master-addr",), value="HOST", help="the address where nodes that you start by hand meet"),
    Option(names=("--master-port",), value="PORT", help="and the port"),
    Option(names=("--rdzv-endpoint",), value="HOST:PORT", help="the same as one option"),
    Option(names=("--rdzv-id",), value="ID", fills="name", help="the value of TORCHELASTIC_RUN_ID in the ranks"),
    Option(names=("--virtual-local-rank",), fills="visible", sets="own", help="the same as --visible own"),
    Option(names=("-t", "--tee"), value="N", help="torchrun's way to say --show all"),
    Option(names=("--standalone",), no_meaning=WE_MEET),
    Option(names=("--rdzv-backend",), value="NAME", no_meaning=WE_MEET),
    Option(names=("--rdzv-conf",), value="K=V,…", no_meaning=WE_MEET),
    Option(names=("--local-addr",), value="HOST", no_meaning=WE_MEET),
    Option(names=("--monitor-interval",), value="S", no_meaning="echelon notices the end of a rank at once"),
    Option(names=("--start-method",), value="NAME", no_meaning="see --launch"),
    Option(names=("--role",), value="NAME", no_meaning="all ranks have the same role"),
    Option(names=("--use-env",), no_meaning="LOCAL_RANK is always in the environment"),
    Option(names=("--run-path",), no_meaning="echelon always runs the script as python does"),
    Option(names=("--log-dir",), value="DIR", no_meaning=_OWN_LOGS),
    Option(names=("-r", "--redirects"), value="N", no_meaning=_OWN_LOGS),
    Option(names=("--local-ranks-filter",), value="RANKS", no_meaning="see --show"),
    Option(names=("--duplicate-stdout-filters",), value="TEXT", no_meaning=_OWN_LOGS),
    Option(names=("--duplicate-stderr-filters",), value="TEXT", no_meaning=_OWN_LOGS),
    Option(names=("--logs-specs",), value="NAME", no_meaning=_OWN_LOGS),
    Option(names=("--event-log-handler",), value="NAME", no_meaning="events are in events.jsonl of the run directory"),
    Option(names=("--numa-binding",), value="HOW", no_meaning="see --bind"),
    Option(names=("--signals-to-handle",), value="NAMES", no_meaning="TERM, INT, USR1 and USR2 always reach the ranks"),
    Option(names=("--shutdown-timeout",), value="S", no_meaning="see the grace periods in docs/run.md"),
)  # fmt: skip


# the options of a help text, in the order of need; options in no group come last
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("most used", ("nproc_per_node", "scale", "nnodes", "env", "show", "debug", "run_dir", "track", "dry_run", "help")),
    ("scaling of a script for one device", (
        "no_check", "exact", "same_random", "global_batch", "per_device_batch", "scale_lr", "sync_bn", "shard_eval", "watch_bits", "sync_every",
        "outer_lr", "outer_momentum", "async", "compress", "bucket_mb", "explain_hooks")),
    ("limits, checkpoints and restarts", (
        "timeout", "time", "hang_timeout", "checkpoint_every", "keep_checkpoints", "resume", "max_restarts", "no_pool", "check", "exclude_bad")),
    ("where ranks run", (
        "hosts", "cpus_per_task", "bind", "visible", "share_devices", "launch", "container", "container_bind", "stage_data", "stage_env")),
    ("the program to start", ("module", "no_python", "json")),
)  # fmt: skip


def in_groups() -> tuple[tuple[str, tuple[Option, ...]], ...]:
    """Return the options under the titles of the help; the last group holds the others, which are torchrun's."""
    grouped = {key for _, keys in GROUPS for key in keys}
    others = tuple(option.key for option in OPTIONS if option.key not in grouped)
    return tuple(
        (title, tuple(option for key in keys for option in OPTIONS if option.key == key))
        for title, keys in (*GROUPS, ("as in torchrun", others))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A command line, taken apart."""

    values: dict[str, list[str]]
    """Option key → its values in order; a flag adds one empty value each time."""
    rest: tuple[str, ...]
    """The script or program and its arguments."""
    is_program: bool
    """Whether -- preceded the rest."""

    @property
    def last(self) -> dict[str, str]:
        """Return the last value of each option, which counts where one value does."""
        return {key: texts[-1] for key, texts in self.values.items()}

    def words(self, options: Sequence[Option]) -> tuple[str, ...]:
        """Return the given options of these rows as words of a command line; -m belongs to the script."""
        words: list[str] = []
        for option in options:
            if option.key != "module":
                for value in self.values.get(option.key, ()):
                    words += [option.names[-1], value] if option.value else [option.names[-1]]
        return tuple(words)


def fields(values: Mapping[str, Sequence[str]], options: Sequence[Option]) -> dict[str, Any]:
    """Return the fields that these rows fill: name → value; raise UsageError for a text that is no value."""
    return {row.fills: row.read(values[row.key]) for row in options if row.fills and row.key in values}


def scan(arguments: Sequence[str], options: Sequence[Option] = OPTIONS, *, command: str = "run") -> Scanned:
    """Read options up to the script; raise UsageError for an unknown option."""
    by_name = {name: option for option in reversed(options) for name in option.names}  # of equal names the first wins
    values: dict[str, list[str]] = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return Scanned(values=values, rest=tuple(arguments[position + 1 :]), is_program=True)
        if not word.startswith("-") or word == "-":
            break
        name, has_value, value = _split(word, by_name)
        option = by_name.get(name) or _unknown(name, by_name, command)
        position += 1
        if option.value and not has_value:
            if position == len(arguments):
                raise UsageError(f"{name} needs a value", hint=f"echelon {command} {name} {option.value} …")
            value = arguments[position]
            position += 1
        elif has_value and not option.value:
            raise UsageError(f"{name} takes no value, but got {value!r}", hint=f"echelon {command} {name} …")
        values.setdefault(option.key, []).append(value)
    return Scanned(values=values, rest=tuple(arguments[position:]), is_program=False)


def scan_all(arguments: Sequence[str], options: Sequence[Option], *, command: str) -> Scanned:
    """Read options before, between and after the operands; `--` ends the options."""
    values: dict[str, list[str]] = {}
    words: list[str] = []
    rest = tuple(arguments)
    while rest:
        scanned = scan(rest, options, command=command)
        for key, texts in scanned.values.items():
            values.setdefault(key, []).extend(texts)
        words += scanned.rest if scanned.is_program else scanned.rest[:1]
        rest = () if scanned.is_program else scanned.rest[1:]
    return Scanned(values=values, rest=tuple(words), is_program=False)


def _split(word: str, by_name: Mapping[str, Option]) -> tuple[str, bool, str]:
    """Split --name=value and -n4; underscores in a long name count as dashes."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name.replace("_", "-"), bool(equals), value
    short = word[:2]
    if len(word) > 2 and short in by_name and by_name[short].value:
        return short, True, word[2:].removeprefix("=")
    return word, False, ""


_OF_SUBMIT = ("--chain", "--max-hours")


def _unknown(name: str, by_name: Mapping[str, Option], command: str) -> Option:
    starts = [known for known in by_name if known.startswith(name) and name.startswith("--")]
    is_foreign = name.startswith("--") and _is_foreign(name)
    if len({by_name[known].key for known in starts}) == 1 and not is_foreign:
        return by_name[starts[0]]  # argparse, and so torchrun, accepts abbreviations
    is_of_run = command != "run" and any(name in option.names for option in OPTIONS)
    near = starts or _nearest(name, by_name)
    lists = f"echelon {command} --help lists them; the script's own come after it"
    hint = f"did you mean {' or '.join(near)}?" if near else lists
    if name in _OF_SUBMIT:
        hint = f"echelon submit {name} …" + (" -- echelon sweep …" if command == "sweep" else "")
    if is_of_run:
        hint = f"{name} is an option of echelon run; " + hint
    raise UsageError(f"echelon has no option {name}", hint=hint)


def _is_foreign(name: str) -> bool:
    """Say whether Slurm or torchrun has an option of exactly this name: then it abbreviates none of ours."""
    from echelon.lint.batch import names, names_of_steps

    return name[2:] in (names() | names_of_steps()) or any(name in option.names for option in OPTIONS)


def _nearest(name: str, by_name: Mapping[str, Option]) -> list[str]:
    import difflib

    def likeness(known: str) -> float:
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        return max(whole, difflib.SequenceMatcher(None, name, known[: len(name) + 1]).ratio())

    ranked = sorted((likeness(known), known) for known in by_name if known.startswith("--"))
    return [known for ratio, known in reversed(ranked[-2:]) if ratio > max(0.6, ranked[-1][0] - 0.2)]


def rows(options: Sequence[Option]) -> list[str]:
    """Return the help lines of the options that have an effect, as wide as the terminal."""
    import textwrap

    lines = []
    width = max(terminal.columns() - 1, LEFT + 20)
    for option in options:
        if not option.no_meaning:
            left = "  " + ", ".join(option.names) + (f" {option.value}" if option.value else "")
            first = f"{left:<{LEFT - 2}}  "
            if len(first) > LEFT:
                lines.append(left)
                first = " " * LEFT
            lines += textwrap.wrap(
                option.help, width, initial_indent=first, subsequent_indent=" " * LEFT, break_on_hyphens=False
            )
    return lines
