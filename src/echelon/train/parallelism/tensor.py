"""--scale tensor: each rank computes its part of every attention and MLP."""

from torch import nn

from .. import optimizer_kinds
from ..strategies import blocks, tensor_plans
from ..strategies.strategy import StrategyError
from .model_parallel import ModelParallel


class Tensor(ModelParallel):
    """Cuts the matrices of blocks; activations between blocks are equal on all ranks."""

    what = "computes its part of every layer"
    cuts_weights = True

    def install(self, run: object) -> None:
        optimizer_kinds.install()
        super().install(run)

    def split(self, root: nn.Module) -> None:
        tensor_plans.apply(root, _blocks(root), self.axes, {})

    def _worth_it(self, roots: list[nn.Module]) -> list[nn.Module]:
        return self._with_blocks(roots, tensor_plans.is_known)

    def refuse_without_blocks(self, root: nn.Module) -> None:
        tensor_plans.derive(root, _blocks(root), self.axes)
        raise StrategyError(f"echelon finds no layer to cut in {type(root).__name__}")


def _blocks(root: nn.Module) -> dict[str, nn.Module]:
    if getattr(root, "_tp_plan", None):
        return blocks.find(root)
    return blocks.need(root, (), "--scale tensor")
