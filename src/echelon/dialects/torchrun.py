"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.dialects.line import Given, Grammar, LauncherLine, read

# torch 2.13, torch/distributed/run.py
GRAMMAR = Grammar(
    launcher="torchrun",
    flags=frozenset({"standalone", "module", "no-python", "run-path", "use-env", "virtual-local-rank"}),
    values=frozenset(
        {"nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts",
         "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee", "local-ranks-filter",
         "duplicate-stdout-filters", "duplicate-stderr-filters", "node-rank", "master-addr", "master-port",
         "local-addr", "logs-specs", "event-log-handler", "numa-binding", "signals-to-handle", "shutdown-timeout"}
    ),
    short={"-m": "module", "-r": "redirects", "-t": "tee"},
)  # fmt: skip
EXAMPLE = "echelon run -- torchrun --nproc-per-node=4 train.py"


def line(name: str, words: Sequence[str]) -> LauncherLine:
    """Read the line; `torch.distributed.launch` passes the local rank to each rank as an argument by default."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    passes_rank = name == "torch.distributed.launch" and not arguments.has("use-env")
    return LauncherLine(
        launcher=name,
        command=arguments.script_or_program(name, example=EXAMPLE),
        options=tuple(
            Given(key=option.key.replace("-", "_"), value=option.value, text=option.text)
            for option in arguments.given
            if option.key not in ("module", "no-python")
        ),
        rank_argument="--local-rank=" if passes_rank else "",
    )
