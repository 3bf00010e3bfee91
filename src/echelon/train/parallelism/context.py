"""--scale context: each rank computes its part of every sequence."""

from typing import Any

import torch
from torch import nn

from ..function_types import Args, Function, Kwargs
from ..global_tensors.tensors import map_tensors, tensors_of
from ..model_parallel.absent_weights import WITH_THE_BATCH
from ..scaling_error import ScalingError
from ..strategies import attention, dtensors
from ..wire.gather import is_sharded
from .model_parallel import ModelParallel, refuse_batch_norms, refusing


class Context(ModelParallel):
    what = "computes its part of every sequence"

    def split(self, root: nn.Module) -> None:
        refuse_batch_norms(root, "the statistics of all tokens, but each rank has only some tokens", "use LayerNorm")
        attention.apply(root, self.axes)
        dtensors.teach_attention()

    def compute(self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Call a module with sequences that are cut, and give every rank the whole output."""
        if not any(is_sharded(one) for one in module.parameters()):
            return original(module, *args, **kwargs)
        lead = self._lead(module, args, kwargs)
        if lead is not None:
            args, kwargs = map_tensors((args, kwargs), lambda one: self._cut(one, lead))
        return super().compute(original, module, args, kwargs)

    def _lead(self, module: nn.Module, args: object, kwargs: object) -> torch.Tensor | None:
        """Return the first input, if its second dim is a sequence that ranks can share evenly."""
        number, name = self.world.size, type(module).__name__
        trains = torch.is_grad_enabled()
        lead = next((one for one in tensors_of(args, kwargs) if one.dim() > 1), None)
        if lead is None or lead.dim() != (3 if lead.is_floating_point() else 2):
            if not trains:
                return None  # as it is: whole on every rank
            raise ScalingError(
                "{} gets {}, but --scale context cuts sequences: rows of tokens, or rows of vectors".format(
                    name,
                    "no sequence" if lead is None else f"a tensor of shape {tuple(lead.shape)} as its first argument",
                ),
                WITH_THE_BATCH,
            )
        if not trains and lead.size(1) % number:
            return None
        with refusing():
            attention.cut_plain(lead, self.axes)  # refuses tokens that do not come out even
        return lead

    def _cut(self, tensor: torch.Tensor, lead: torch.Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        if is_sharded(tensor) or tensor.shape[:2] != lead.shape[:2]:
            return tensor
        mesh = self.axes.mesh("context")
        whole = DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=[Shard(1)])
