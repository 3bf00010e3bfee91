"""Where a script calls its models: the outermost call is that of the whole model, on every rank."""

import os
from typing import TYPE_CHECKING, Any, Callable

from torch import nn

from ..view.calls import Calls, has_parameters

if TYPE_CHECKING:
    from .gradients import SplitGradients


class SplitCalls(Calls):
    """Lets models be split before they are first trained, and computed as they are split."""

    def call(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module."""
        run: Any = self._run
        if run.world.is_alone and run.streams.is_watched and not self.is_inside:
            with self._inside(None):
                return original(module, *args, **kwargs)
        if self.is_inside or os.getpid() != self._pid or not has_parameters(module):
            return original(module, *args, **kwargs)
        gradients: SplitGradients = run.gradients
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
