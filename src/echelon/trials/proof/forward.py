"""Where the first forward pass differs from that of one device: the first module with another output."""

from typing import Any

from echelon.trials.proof.evidence import FirstDifference, Recordings, Row, TensorCut, relative, times
from echelon.trials.proof.tensors import NEAR, Tensor, apart, is_near, joined, multiple, total

Call = dict[str, Any]
SUM_MISSING = (
    "on each rank it is only a part of the sum: nothing adds up the ranks' parts; an all-reduce is missing after it"
)


def first_apart(case: Recordings) -> FirstDifference | None:
    """Return the first module whose output differs, where ranks share one pass over the same samples."""
    oracle, several = case.rows(1)
    digests = {rank["digest"] for rank in several["ranks"] if rank["samples"]}
    if len(digests) > 1 or relative(oracle["loss"], several["loss"]) <= NEAR:
        return None
    whole = _by_module(case.oracle.activation_traces()[0])
    parts = [_by_module(calls) for calls in case.several.activation_traces()]
    pending: FirstDifference | None = None
    state, last = "unknown", ""
    for last, call in whole.items():
        state, difference = _judged(last, call, parts, whole)
        if state == "apart":
            return pending or difference
        if state == "part":
            pending = pending or difference
        elif state == "right":
            pending = None
    return _of_loss(oracle, several, last) if state == "right" else pending


def _by_module(calls: list[Call]) -> dict[str, Call]:
    """Return one call for each module: the calls of micro-batches, cut from one batch, are joined."""
    modules: dict[str, list[Call]] = {}
    for call in calls:
        modules.setdefault(call["module"], []).append(call)
    return {name: {**several[0], "in": _joined(several, "in"), "out": _joined(several, "out")}
            for name, several in modules.items()}  # fmt: skip


def _joined(calls: list[Call], key: str) -> Tensor | None:
    tensors = [call[key] for call in calls]
    if len(tensors) == 1 or any(tensor is None or tensor.dim() == 0 for tensor in tensors):
        first: Tensor | None = tensors[0]
        return first
    return joined(tensors, 0)


def _judged(name: str, call: Call, parts: list[dict[str, Call]], whole: dict[str, Call]) -> Any:
    """Return whether a module's output is right, a part of a sum, apart or unknown; and the difference."""
    outputs = [part[name]["out"] for part in parts if name in part and part[name]["out"] is not None]
    wanted = call["out"]
    if not outputs or wanted is None or not wanted.is_floating_point():
        return "unknown", None
    if any(output.shape != wanted.shape for output in outputs):
        pieces = _whole(outputs, wanted)
        if pieces is None:
            return _of_rows(name, [len(out) for out in outputs if out.shape[1:] == wanted.shape[1:]], len(wanted))
        outputs = [pieces]
    if all(is_near(output, wanted) for output in outputs):
        return "right", None
    label = f"output of {name}"
    if len(outputs) == len(parts) > 1 and is_near(total(outputs), wanted):
        return "part", FirstDifference(1, label, 0.0, f"{label} differs between the ranks", SUM_MISSING)
    return "apart", _apart(label, call, parts, outputs, whole)


def _of_rows(name: str, rows: list[int], wanted: int) -> Any:
    """Detect a module that gets fewer samples, all ranks together: micro-batches are left out."""
    if not rows or sum(rows) == wanted or wanted in rows or sum(rows) % wanted == 0:
        return "unknown", None
    why = f"{name} gets {sum(rows)} samples in the first step, but {wanted} on one device"
    meaning = "some samples are left out, or passed twice: count the micro-batches that each stage sends and receives"
    return "apart", FirstDifference(1, f"output of {name}", 0.0, why, meaning)


def _whole(outputs: list[Tensor], wanted: Tensor) -> Tensor | None:
    """Return outputs that are cut, put together; not along the samples, which ranks may have in any order."""
    tensors = (TensorCut(dim, 1).joined(outputs) for dim in range(1, wanted.dim()))
    return next((tensor for tensor in tensors if tensor is not None and tensor.shape == wanted.shape), None)


def _apart(
    label: str, call: Call, parts: list[dict[str, Call]], outputs: list[Tensor], whole: dict[str, Call]
) -> FirstDifference:
    output, wanted = outputs[0], call["out"].double()
    for tensor in (output, total(outputs)):
        count = _times_bias(tensor - wanted, call["bias"])
        if count:
            meaning = (
                f"it contains its bias {times(count)} times too often: each rank adds the bias to its part, and the "
                "parts are summed; add the bias once, after the sum"
            )
            break
    else:
        factor = multiple(output, wanted)
        if any(abs(factor - number) < NEAR * number for number in (len(outputs), 1 / len(outputs)) if number != 1):
            meaning = "it is summed over the ranks more than once, or scaled by their number"
            return FirstDifference(1, label, factor, f"{label} is {times(factor)} times as large", meaning)
        meaning = _of_inputs(call, parts, whole)
    return FirstDifference(1, label, 0.0, f"{label} differs by {apart(wanted, output):.2g} of its norm", meaning)


def _of_inputs(call: Call, parts: list[dict[str, Call]], whole: dict[str, Call]) -> str:
    """Return the meaning of a wrong output: its input is right, or it is another module's, or is wrong already."""
    own = next(part[call["module"]] for part in parts if call["module"] in part)
    if _is_twin(own["in"], call["in"]):
        return (
            "its input and its weights are right: it computes something else, or its weights are cut at other "
            "places than it uses them (heads; queries, keys and values in one weight)"
        )
    for name, other in ((name, other) for part in parts for name, other in part.items() if name in whole):
        if _is_twin(other["in"], whole[name]["in"]):
            continue
        twin = next((module for module, known in whole.items() if _is_twin(other["in"], known["in"])), "")
        if twin:
            return (
                f"{name} gets the input that {twin} gets on one device: the layers, or the stages of a pipeline, are "
                "in another order, or one is left out"
            )
    return (
        "its input is already wrong, between this module and the modules before it: check what the ranks send each "
        "other"
    )


def _is_twin(tensor: Tensor | None, other: Tensor | None) -> bool:
    return tensor is not None and other is not None and tensor.shape == other.shape and is_near(tensor, other)


def _of_loss(oracle: Row, several: Row, last: str) -> FirstDifference:
    wanted, loss = oracle["loss"], several["loss"]
    ratio = loss / wanted if wanted and loss else 0.0
    why = f"the loss is {loss:.7g}, but {wanted:.7g} on one device, with the same output of {last}"
    for count in range(2, 65):
        if abs(ratio - count) < 1e-3 * count or abs(ratio * count - 1) < 1e-3:
            act = "added up" if ratio > 1 else "divided by their number more than once"
            meaning = (
                f"it is {times(ratio)} times as large: losses of {count} micro-batches are {act}, but the loss should "
                "be their mean"
            )
            return FirstDifference(1, "loss", ratio, why, meaning)
    meaning = (
        "the model computes the same output, but the loss uses something else: the targets belong to other "
        "samples or micro-batches, or the mean is over something else"
    )
    return FirstDifference(1, "loss", ratio, why, meaning)


def _times_bias(difference: Tensor, bias: Any) -> float:
    """Return how many times a difference is a bias, in every row; 0: it is something else."""
    if bias is None or difference.dim() == 0 or difference.size(-1) != bias.numel() or not bias.any():
        return 0.0
    rows = difference.reshape(-1, bias.numel())
    return multiple(rows, bias.flatten().expand_as(rows))
