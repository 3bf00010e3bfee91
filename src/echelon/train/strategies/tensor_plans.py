"""Cut the matrices of unchanged blocks along the tensor axis, by a given plan or a derived plan.

A derived plan places weights only. The inputs of an attention or MLP become DTensors, so that the module's own code
still sees the shapes of the whole model, however it names its heads. Its outputs are plain tensors again.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from ..function_types import Args, Function
from ..wire import device as devices
from ..wire.gather import is_dtensor
from . import blocks, dropout, dtensors
from .axes import Axes
from .strategy import StrategyError
from .versions import unsent

THREE = {"qkv", "c_attn", "in_proj", "qkv_proj", "Wqkv"}
"""Matrices whose first rows are all of the queries, then the keys, then the values: a cut by rows cuts no heads."""
FIRST = {*THREE, "query_key_value", "q_proj", "k_proj", "v_proj", "wq", "wk", "wv", "query", "key", "value",
         "to_q", "to_k", "to_v", "q", "k", "v"}  # fmt: skip
LAST = {"o_proj", "wo", "out_proj", "to_out", "proj", "c_proj", "o", "out", "dense"}
UP = {"up_proj", "gate_proj", "w1", "w3", "fc1", "c_fc", "up", "gate", "dense_h_to_4h", "lin1", "linear1", "fc_in"}
DOWN = {"down_proj", "w2", "fc2", "c_proj", "down", "dense_4h_to_h", "lin2", "linear2", "fc_out"}
HEADS = ("n_head", "num_heads", "n_heads", "num_attention_heads", "heads", "n_kv_heads", "num_key_value_heads",
         "num_kv_heads", "n_kv_head")  # fmt: skip
NORMS = (nn.LayerNorm, nn.RMSNorm)


OF_ATTENTION = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""The weights of nn.MultiheadAttention that belong to no inner module."""


class CutModule(NamedTuple):
    """A module with cut weights: its first layers are cut along their outputs, its last layers along their inputs."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    by_layer: bool = False
    """Whether activations are cut only between its first and last layers, because it holds other layers too."""

    def called(self, module: nn.Module) -> list[nn.Module]:
        """Return the modules that get hooks between whole and cut activations."""
        return [module.get_submodule(name) for name in (*self.first, *self.last)] if self.by_layer else [module]


def apply(model: nn.Module, model_blocks: Mapping[str, nn.Module], axes: Axes, plan: Mapping[str, object]) -> None:
    """Cut a model by the user's plan, by the plan of a Hugging Face model, or by a derived plan."""
    tied = list(blocks.tied(model).values())
    given_plan = plan or getattr(model, "_tp_plan", None) or {}
    if given_plan and axes.strategy.sequence_parallel:
        raise StrategyError(
            "sequence_parallel derives the plan from the model's blocks, but run.parallelize() got a plan",
            hint='write it into the plan: {"layers.*.norm": "sequence_parallel", …}, sequence_parallel=False',
        )
    if given_plan:
        _apply_given(model, given_plan, axes)
    else:
        derive(model, model_blocks, axes)
    if axes.strategy.parallel_loss:
        _cut_head(model, axes)
    _refuse_untied(model, tied)


def _refuse_untied(model: nn.Module, tied: list[tuple[str, ...]]) -> None:
    for names in tied:
        if len({id(model.get_parameter(name)) for name in names}) > 1:
            raise StrategyError(
                "{} are one shared tensor, but the tensor axis would cut it under only one of these names".format(
                    " and ".join(names)
                ),
                hint="give a plan that leaves these modules out: run.parallelize(…, plan={…})",
            )


def _styles() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    return {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
        "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
        "sequence_parallel": SequenceParallel,
    }


def _apply_given(model: nn.Module, plan: Mapping[str, Any], axes: Axes) -> None:
    """Cut the modules that a plan names; every rank has the same weights, so no weights are sent."""
    from torch.distributed.tensor.parallel import parallelize_module

    styles, names = _styles(), [name for name, _ in model.named_modules()]
    for pattern, style in plan.items():
        if isinstance(style, str) and style not in styles:
            raise StrategyError(
                "the plan says {!r} for {}; the choices are {}".format(style, pattern, ", ".join(styles)),
                hint="use one of these words, or a ParallelStyle of torch.distributed.tensor.parallel",
            )
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise StrategyError(
                f"the plan names {pattern}, but {type(model).__name__} has no such module",
                hint="one of {}".format(", ".join(name for name in names[1:12])),
            )
        for name in matched:
            made = styles[style]() if isinstance(style, str) else style
            _refuse_uneven(model.get_submodule(name), name, str(style), axes)
            made.src_data_rank = None
            parallelize_module(model.get_submodule(name), axes.mesh("tensor"), made, **unsent(parallelize_module))
    for name, module in model.named_modules():
        _refuse_heads(module, name, axes)


def _refuse_uneven(module: nn.Module, name: str, style: str, axes: Axes) -> None:
    sizes = {"colwise": "out_features", "rowwise": "in_features"}
    size = getattr(module, sizes.get(style.partition("_")[0], ""), 0)
    number = axes.sizes["tensor"]
    if size % number:
        raise StrategyError(
            f"{name} has {size} {sizes[style.partition('_')[0]]}, which is not a multiple of the tensor axis, {number}",
            hint=f"tensor={divisor_of(size, number)}",
        )


def derive(model: nn.Module, model_blocks: Mapping[str, nn.Module], axes: Axes) -> None:
    """Cut the attention and the MLP of every block whose layers have known names."""
    cuts = {name: cut for block in model_blocks for name, cut in cuts_of(model_blocks[block], block).items()}
    if not cuts:
        raise StrategyError(
            "echelon recognizes no attention and no MLP in the blocks of {}, whose layers are {}".format(
                type(model).__name__, ", ".join(_linears(next(iter(model_blocks.values())))) or "no nn.Linear"
            ),
            hint='give a plan: run.parallelize(…, plan={"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"})',
        )
    for name in cuts:
        _refuse_heads(model.get_submodule(name), name, axes)
        refuse_dropout(model.get_submodule(name), name, axes)
    dtensors.allow_plain_tensors()
    dtensors.teach_attention()
    for name, cut in cuts.items():
        _cut(model.get_submodule(name), cut, axes)
    if axes.strategy.sequence_parallel:
        lists = {name.rpartition(".")[0] for name in model_blocks}
        if len(lists) > 1:
            raise StrategyError(
                "sequence_parallel cuts from the first block to the last, but the blocks are in {}".format(
                    ", ".join(lists)
                ),
                hint="sequence_parallel=False",
            )
        _cut_sequences(list(model_blocks.values()), cuts, model, axes)


def is_known(model: nn.Module) -> bool:
    model_blocks = blocks.find(model)
    return bool(getattr(model, "_tp_plan", None)) or any(cuts_of(model_blocks[name], name) for name in model_blocks)


def cuts_of(block: nn.Module, prefix: str) -> dict[str, CutModule]:
    """Return the modules of a block that have known layers: the innermost that hold both layers of a pair."""
    cuts = {}
    for name, module in block.named_modules():
        path = f"{prefix}.{name}" if name else prefix
        if isinstance(module, nn.MultiheadAttention):
            cuts[path] = CutModule((), ("out_proj",))
            continue
        calls_nothing = isinstance(module, (nn.ModuleDict, nn.ModuleList))  # its owner calls the layers
        linears = [child for child, one in module.named_children() if isinstance(one, nn.Linear)]
        for first, last in ((FIRST, LAST), (UP, DOWN)):
            begins = tuple(one for one in linears if one in first)
            ends = tuple(one for one in linears if one in last and one not in begins)
            if begins and ends:
                cuts[path] = CutModule(begins, ends, calls_nothing)
        if isinstance(module, nn.Sequential) and len(linears) == 2 and path not in cuts:
            cuts[path] = CutModule((linears[0],), (linears[1],))
    return {
        path: cut._replace(by_layer=cut.by_layer or any(other.startswith(path + ".") for other in cuts))
        for path, cut in cuts.items()
    }


def _linears(block: nn.Module) -> list[str]:
    return [name for name, module in block.named_modules() if isinstance(module, nn.Linear)]


def _refuse_heads(module: nn.Module, name: str, axes: Axes) -> None:
    number = axes.sizes["tensor"]
    for attribute in HEADS:
        heads = getattr(module, attribute, None)
        if isinstance(heads, int) and not isinstance(heads, bool) and heads % number:
            raise StrategyError(
                f"{name}.{attribute} is {heads}, which is not a multiple of the tensor axis, {number}",
                hint=f"tensor={divisor_of(heads, number)}",
            )


def divisor_of(size: int, most: int) -> int:
    return max(one for one in range(1, most + 1) if size % one == 0)


def refuse_dropout(module: nn.Module, name: str, axes: Axes) -> None:
    """Refuse random numbers for DTensors where PyTorch has none (2.13: "…is not supported on cpu mesh")."""
    if devices.is_accelerator(axes.world.device) or dropout.is_installed():
        return
    for inner, layer in module.named_modules():
        p = getattr(layer, "p", None) if isinstance(layer, nn.Dropout) else getattr(layer, "dropout", None)
        if isinstance(p, float) and p > 0:
            where = ".".join(part for part in (name, inner) if part)
            raise StrategyError(
                f"{where} applies dropout {p:g} to tensors that the tensor or context axis cuts, and PyTorch has no "
                "random numbers for cut tensors on a CPU",
                hint="set dropout to 0 there, or use a GPU",
            )


def _cut(module: nn.Module, cut: CutModule, axes: Axes) -> None:
    """Place the weights of one attention or MLP; its own code computes with DTensors from then on."""
    from torch.distributed.tensor import Replicate, Shard

    mesh, by_sequence = axes.mesh("tensor"), axes.strategy.sequence_parallel
    for name in cut.first:
        place(module.get_submodule(name), mesh, {"weight": Shard(0), "bias": Shard(0)})
        if name in THREE:
            module.get_submodule(name).register_forward_hook(_gathered)
    for name in cut.last:
        place(module.get_submodule(name), mesh, {"weight": Shard(1), "bias": Replicate()})
    outside, called = Shard(1) if by_sequence else Replicate(), cut.called(module)
    for child in [child for one in called for child in one.modules()]:  # such as a norm of queries and keys
        place(child, mesh, dict.fromkeys(OF_ATTENTION, Shard(0)))
    for begin in called[: len(cut.first)] if cut.by_layer else called:
        begin.register_forward_pre_hook(_enters(mesh, outside), with_kwargs=True)
    for end in called[len(cut.first) :] if cut.by_layer else called:
        end.register_forward_hook(_leaves(outside))


def place(module: nn.Module, mesh: Any, placements: Mapping[str, Any]) -> None:
    """Make a module's own weights DTensors: as named, or whole on every rank. Nothing is sent: all ranks have them."""
    from torch.distributed.tensor import Replicate, distribute_tensor

    for name, parameter in list(module.named_parameters(recurse=False)):
        if not is_dtensor(parameter):
            placement = placements.get(name, Replicate())
            cut = distribute_tensor(parameter.detach(), mesh, [placement], **unsent(distribute_tensor))
            module.register_parameter(name, nn.Parameter(cut, requires_grad=parameter.requires_grad))


def _enters(mesh: Any, outside: Any) -> Function:
    """Return a hook that makes activations DTensors, whole on every rank; masks and tables stay plain."""
    from torch.distributed.tensor import DTensor, Replicate

    def enter(_module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
        changed: dict[int, Any] = {}  # a tensor that is passed twice stays one tensor: so self-attention is recognized

        def change(value: object) -> Any:
            if isinstance(value, DTensor) or not isinstance(value, torch.Tensor):
                return value
            if value is not tensors[0] and not value.requires_grad:
                return value
            if id(value) not in changed:
                cut = DTensor.from_local(value, mesh, [outside], run_check=False)
                changed[id(value)] = cut.redistribute(placements=[Replicate()])
            return changed[id(value)]

        return tuple(change(one) for one in args), {key: change(one) for key, one in kwargs.items()}

    return enter


def _gathered(_module: nn.Module, _args: object, output: Any) -> object:
    from torch.distributed.tensor import Replicate

    return output.redistribute(placements=[Replicate()])


def _leaves(outside: object) -> Function:
    """Return a hook that makes outputs plain: the sum over all ranks, or this rank's part of it."""

    def leave(module: nn.Module, _args: object, output: Any) -> object:
        if isinstance(output, tuple):
            return tuple(leave(module, (), one) for one in output)
        if not is_dtensor(output):
            return output
        return _laid_like(output.redistribute(placements=[outside]).to_local(), output)

    return leave


def _laid_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the dims of another in the same order in memory: dropout draws numbers in that order."""
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(like.dim())])


def _cut_sequences(model_blocks: list[nn.Module], cuts: Mapping[str, CutModule], model: nn.Module, axes: Axes) -> None:
    """Cut sequences from the first block to the last: norms and sums between the cut layers compute their part."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    mesh = axes.mesh("tensor")
    inside = {
        id(one)
        for name, cut in cuts.items()
        for called in cut.called(model.get_submodule(name))
        for one in called.modules()
    }
    for number, block in enumerate(model_blocks):
        for name, module in block.named_modules():
            if id(module) in inside or not any(True for _ in module.parameters(recurse=False)):
                continue
            if not (isinstance(module, NORMS) or type(module).__name__.endswith("RMSNorm")):
                raise StrategyError(
                    f"block {number} has weights in {name or 'itself'}, which echelon recognizes as no norm, attention "
                    "or MLP; with sequence_parallel each rank would apply them only to its own tokens",
                    hint="sequence_parallel=False",
                )
            parallelize_module(module, mesh, SequenceParallel(use_local_output=True), **unsent(parallelize_module))

    def enter(_module: nn.Module, args: Args) -> Any:
        activation = args[0]
        if activation.size(1) % mesh.size():
            raise StrategyError(
                f"a sequence has {activation.size(1):d} tokens, which is not a multiple of the tensor "
                f"axis, {mesh.size()}",
                hint=f"use sequences of a multiple of {mesh.size()} tokens, or sequence_parallel=False",
            )
        whole = DTensor.from_local(activation, mesh, [Replicate()], run_check=False)
        return (whole.redistribute(placements=[Shard(1)]).to_local(), *args[1:])

    def leave(_module: nn.Module, _args: object, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        part = DTensor.from_local(first, mesh, [Shard(1)], run_check=False)
        whole = part.redistribute(placements=[Replicate()]).to_local()
        return (whole, *output[1:]) if isinstance(output, tuple) else whole

    model_blocks[0].register_forward_pre_hook(enter)
    model_blocks[-1].register_forward_hook(leave)


def _cut_head(model: nn.Module, axes: Axes) -> None:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    heads = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    name, head = heads[-1]
    if id(head.weight) in blocks.tied(model):
        raise StrategyError(
            "{}.weight is also {}, but parallel_loss cuts only one of the two".format(
                name, ", ".join(one for one in blocks.tied(model)[id(head.weight)] if one != name + ".weight")
            ),
            hint="parallel_loss=False",
        )
    _refuse_uneven(head, name, "colwise", axes)
    style = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(head, axes.mesh("tensor"), style, **unsent(parallelize_module))
