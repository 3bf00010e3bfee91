"""Where a script calls its models: the outermost call is that of the whole model, on every rank."""

import os
from typing import TYPE_CHECKING, Any, Callable

from torch import nn

from ..view.calls import has_parameters
from ..view.model_calls import ModelCalls

if TYPE_CHECKING:
    from ..training import Training


class SplitCalls(ModelCalls):
    """Lets models be split before they are first trained, and computed as they are split."""

    def __init__(self, run: "Training") -> None:
        super().__init__(run.draws)
        self._run = run

    def call(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module."""
        run = self._run
        if run.world.is_alone and run.streams.is_watched and not self.is_inside:
            if run.begins_training():
                run.begin_training()  # an oracle that was sent ahead before that
            with self._inside(None):
                return original(module, *args, **kwargs)
        if self.is_inside or os.getpid() != self._pid or not has_parameters(module):
            return original(module, *args, **kwargs)
        gradients: Any = run.gradients
        if run.begins_training():
            run.begin_training()
            if gradients.split is not None:
                gradients.inputs.compare((args, kwargs), run.world)
        if gradients.split is None:
            return original(module, *args, **kwargs)
        self.is_inside = True
        try:
            return gradients.split.compute(original, module, args, kwargs)
        finally:
            self.is_inside = False
