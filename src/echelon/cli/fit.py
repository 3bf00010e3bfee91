"""`echelon fit`: whether a training fits, on which devices, with which strategy, and how far it scales."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from echelon.cli import fit_devices, fit_scaling
from echelon.cli.fits import OPTIONS as OF_MODEL
from echelon.cli.help import Help
from echelon.cli.options import Option, Scanned
from echelon.cli.readers import one_of, plot_files, whole
from echelon.cli.talk import print_json, say
from echelon.errors import UsageError
from echelon.estimate import remembered
from echelon.estimate.remembered import MemoryPrediction
from echelon.host import Host
from echelon.machines import kept_rows
from echelon.orders.trace import CONFIG, FUNCTION, MODULE, SCRIPT, TraceOrder
from echelon.plan.memory import TORCH_DTYPES

if TYPE_CHECKING:
    from echelon.estimate.verdict import FitVerdict
    from echelon.launch.fit import TracedTraining

OPTIMIZERS = ("adamw", "adam", "momentum", "sgd")
OF_TRACE: tuple[Option, ...] = (
    Option(names=("--gpus",), value="N", help="compare the strategies on so many devices (default: those of a node)"),
    Option(names=("--rows",), value="N", help="rows of the batch of all devices (default: the script's, or 1)"),
    Option(names=("--assume",), value="LINE=VALUE",
           help="the value that a line reads from a tensor: train.py:31=0.5; may be repeated"),
    Option(names=("--config",), value="FILE", takes="file", help="trace a model of transformers from its config.json"),
    Option(names=("--length",), value="N", help="with --config: tokens of a row (default: the model's, at most 4096)"),
    Option(names=("--optimizer",), value="NAME", choices=OPTIMIZERS,
           help="of a function or --config: adamw (default), adam, momentum, sgd"),
    *(option for option in OF_MODEL if option.key == "dtype"),
    Option(names=("-m", "--module"), help="SCRIPT is a module, as after python -m"),
    Option(names=("--cpu",), help="count what the CPU's own kernels keep, and not a device's"),
)  # fmt: skip
OF_SCALING: tuple[Option, ...] = (
    Option(names=("--from",), value="RUN", takes="run", help="the measured runs; a second one follows: --from RUN RUN"),
    *(option for option in fit_scaling.OPTIONS if option.key not in ("node_type", "dtype", "plot")),
)
ENDS: tuple[Option, ...] = (
    Option(names=("--plot",), value="NAME", takes="file",
           help="draw the memory of one step, or the scaling, as NAME.svg and NAME.png"),
    Option(names=("--json",), help="as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
OPTIONS = (*fit_devices.OPTIONS, *OF_TRACE, *OF_SCALING, *ENDS)
HELP = Help(
    command="fit",
    usage=(
        "[options] SCRIPT [args…]",
        "[options] MODULE:FUNCTION",
        "[options] --config FILE",
        "[options] --scaling --from RUN [RUN]",
    ),
    about="Tell what a training takes of a device, which strategies fit, and what to change first.\n"
    "The unchanged script is run up to its second step with tensors that have no data: nothing is computed or\n"
    "written, and no GPU is needed. Exit code 1: it does not fit as it is.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(
        ("devices", fit_devices.OPTIONS),
        ("the training", OF_TRACE),
        ("the speed on more devices", OF_SCALING),
        ("other options", ENDS),
    ),
    example="echelon fit --machine lumi --gpus 8 train.py --epochs 3",
)
_LINE = re.compile(r"([^=]+:[0-9]+)=(.+)")


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments)
    values = scanned.last
    if "scaling" in values or "from" in values:
        return _scaling(scanned, values)
    asked = question(scanned, values)
    from echelon.cli import fit_answer
    from echelon.launch import fit

    host = Host()
    chosen = fit_devices.targets(values, host)
    num_ranks = whole(values["gpus"], "--gpus", least=1, usual=8) if "gpus" in values else 0
    rows = whole(values["rows"], "--rows", least=1, usual=64) if "rows" in values else 0
    files = plot_files(values, usual="memory")
    say(f"tracing {asked.target} up to its second step; nothing is computed or written")
    traced = fit.trace(asked, host, say)
    answer = fit_answer.FitAnswer(asked, traced, chosen, num_ranks=num_ranks, rows=rows)
    if asked.kind == SCRIPT and len(chosen) == 1:  # of many devices, nobody knows on which it will run
        keep(asked, traced, answer.verdicts, host)
    if files:
        from echelon.estimate import timeline
        from echelon.trials import plot

        plot.draw_memory(timeline.without(traced.log), chosen[0].device.memory_bytes if len(chosen) == 1 else 0, files)
    if "json" in values:
        print_json(**answer.as_data())
    else:
        answer.print()
        for line in trust([target.device.chip for target in chosen], traced.log.torch, host):
            print(line)
        for path in files:
            print(path)
    return answer.exit_code


def _scaling(scanned: Scanned, values: Mapping[str, str]) -> int:
    runs = [*scanned.values.get("from", ()), *scanned.rest]
    if "scaling" not in values or not runs:
        raise UsageError(
            "the speed on more devices is estimated from measured runs, which --from names, with --scaling",
            hint="echelon fit --scaling --from RUN RUN",
        )
    answer = fit_scaling.answer(values, runs)
    if "json" in values:
        print_json(**answer.as_data())
    else:
        answer.print()
    return answer.exit_code


def question(scanned: Scanned, values: Mapping[str, str]) -> TraceOrder:
    """Return what to trace; UsageError for options that contradict each other."""
    common: dict[str, Any] = {
        "device": "cpu" if "cpu" in values else "gpu",
        "assumed": dict(map(_assumed, scanned.values.get("assume", ()))),
        "optimizer": one_of(values.get("optimizer", OPTIMIZERS[0]), "--optimizer", OPTIMIZERS),
    }
    if "config" in values:
        return _of_config(scanned, values, common)
    for name in ("length", "dtype"):
        if name in values:
            raise UsageError(f"--{name} describes the batch of a --config", hint="echelon fit --config config.json")
    if not scanned.rest:
        raise UsageError("echelon fit needs a script, a function or --config", hint="echelon fit train.py")
    target, *rest = scanned.rest
    is_function = ":" in target and not os.path.exists(target)
    kind = MODULE if "module" in values else FUNCTION if is_function else SCRIPT
    if kind == SCRIPT and not os.path.isfile(target):
        raise UsageError(
            f"{target} is not a file", hint="echelon fit train.py   or a function: echelon fit module:function"
        )
    return TraceOrder(target=target, kind=kind, arguments=tuple(rest), **common)


def _of_config(scanned: Scanned, values: Mapping[str, str], common: Mapping[str, Any]) -> TraceOrder:
    path = values["config"]
    if scanned.rest:
        raise UsageError(
            f"--config {path} is a model, and {scanned.rest[0]} another", hint=f"echelon fit --config {path}"
        )
    if not os.path.isfile(path):
        raise UsageError(f"--config {path or repr('')}: there is no such file", hint="--config config.json")
    return TraceOrder(
        target=path,
        kind=CONFIG,
        rows=whole(values.get("rows", "1"), "--rows", least=1, usual=8),
        length=whole(values["length"], "--length", least=1, usual=2048) if "length" in values else 0,
        dtype=TORCH_DTYPES[one_of(values.get("dtype", "fp32"), "--dtype", tuple(TORCH_DTYPES))],
        **common,
    )


def _assumed(text: str) -> tuple[str, float]:
    match = _LINE.fullmatch(text)
    try:
        if match is not None:
            return match[1], float(match[2])
    except ValueError:
        pass
    raise UsageError(f"--assume {text or repr('')}: give a line and a number", hint="--assume train.py:31=0.5")


def keep(question: TraceOrder, traced: TracedTraining, verdicts: Iterable[FitVerdict], host: Host) -> None:
    """Keep the prediction for each way in which `echelon run` trains the script, as it is, with its own batch."""
    rows = []
    for verdict in verdicts:
        layout = verdict.layout
        how = remembered.how(layout)
        training = remembered.training_of(
            question.target, question.arguments, how, layout.num_ranks, has_own_batches=False
        )
        if not how or training is None or layout.rows not in (0, traced.log.rows):
            continue
        prediction = remembered.predict(
            training, verdict, torch=traced.log.torch, rows=traced.log.rows, time=host.now()
        )
        rows.append(prediction.as_row())
    if rows:
        kept_rows.add(MemoryPrediction.FILE, rows, host.environ)


def trust(chips: Iterable[str], torch: str, host: Host) -> list[str]:
    """Say of each chip how far runs were from what was predicted; nothing of a chip on which none was compared."""
    rows = kept_rows.read(MemoryPrediction.RATIOS, host.environ)
    return [line for chip in dict.fromkeys(chips) if (line := remembered.trust_memory(rows, chip=chip, torch=torch))]
