"""A trace has the live bytes of a run: those of PyTorch's allocator on the CPU, for scripts in many styles.

In the tier "all" all scripts are compared; else one of 24.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some
from tests.train.fitting import traces

SCRIPTS = traces.ROOT / "tests" / "scripts"
OUTSIDE = {
    "dict_config": "from_numpy() uses numpy's memory, which is not PyTorch's",
    "augmentation": "its workers load batches ahead; a trace starts no workers",
    "iterable_workers": "its workers load batches ahead; a trace starts no workers",
    "workers": "its workers load batches ahead; a trace starts no workers",
    "experts": "its masks select by values: a trace assumes that they select all",
    "routed": "its masks select by values: a trace assumes that they select all",
    "selected_rows": "its masks select by values: a trace assumes that they select all",
    "dqn": "how many states are final depends on random numbers",
    "graphs": "the kernels of sparse tensors take memory that their shapes do not tell",
    "sparse_embedding": "the kernels of sparse tensors take memory that their shapes do not tell",
    "padded_tagger": "oneDNN's LSTM keeps a workspace that no shape tells",
    "speech_ctc": "oneDNN's LSTM keeps a workspace that no shape tells",
    "stateful_rnn": "oneDNN's LSTM keeps a workspace that no shape tells",
    "time_series": "oneDNN's LSTM keeps a workspace that no shape tells",
    "lbfgs": "how often it evaluates its closure depends on values",
    "graph_in_tensorboard": "the tracer of TorchScript does not run under the profiler",
}
"""Scripts whose real memory is not that of a trace, and why."""
INSIDE = frozenset({
    "argparse_images", "batch_sampler", "calls_forward", "cnn_batchnorm", "diffusion", "eval_every", "loss_parts",
    "masked_tokens", "old_classifier", "random_batches", "reinforce", "unet",
})  # fmt: skip
"""Scripts in which a kernel of the CPU takes memory inside of one operation: only the ends of phases are compared."""
UNCALLED = frozenset({"averaged_weights", "ema", "meta_learning"})
"""Scripts with copies of a model that are called by nobody, so that their weights count as other tensors."""
ALL = sorted({path.stem for path in SCRIPTS.glob("*.py")} - set(OUTSIDE))
CHOSEN = some(ALL, 48)
TOLERANCE, LEAST = 0.02, 64  # a wrapped number takes 8 bytes, which count in tiny models


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = {}
    for name in CHOSEN:
        path = SCRIPTS / f"{name}.py"
        jobs |= {f"trace {name}": {"trace": traces.order(path, device="cpu")}, f"run {name}": {"measure": str(path)}}
    return traces.run(tmp_path_factory.mktemp("live"), jobs)


@pytest.mark.parametrize("name", CHOSEN)
def test_live_bytes(results: dict[str, dict[str, Any]], name: str) -> None:
    """The live bytes at the end of each phase and the peaks are within 2 % of those of a run."""
    log, real = results[f"trace {name}"], results[f"run {name}"]
    assert log["failed"] is None
    result = traces.course(log)
    phases = [phase for phase in real if phase not in ("kinds", "building", "building peak")]
    assert {"forward", "optimizer"} <= set(phases)
    wrong = {
        phase: (result[phase], real[phase])
        for phase in phases
        if not (phase.endswith("peak") and name in INSIDE)
        and abs(result[phase] - real[phase]) > max(LEAST, TOLERANCE * real[phase])
    }
    assert wrong == {}


@pytest.mark.parametrize("name", CHOSEN)
def test_bytes_of_each_kind(results: dict[str, dict[str, Any]], name: str) -> None:
    """Weights, gradients and states have the bytes of the tensors that the optimizers have in a run."""
    result, real = traces.kinds(results[f"trace {name}"]), results[f"run {name}"]["kinds"]
    assert set(result) == {"parameter", "gradient", "state"}
    for kind, num_bytes in result.items():
        if kind != "parameter" or name not in UNCALLED:
            assert num_bytes == real[kind], kind


def test_exceptions_exist() -> None:
    """The tables name scripts that are there."""
    assert {*OUTSIDE, *INSIDE, *UNCALLED} <= {path.stem for path in Path(SCRIPTS).glob("*.py")}
