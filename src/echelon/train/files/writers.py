"""Let one rank call the functions of libraries that write a file by its path."""

from typing import Any, Callable

from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..patches import Hooks
from . import library_writers, whole
from .folders import changing
from .sharing import Files


def install(files: Files, hooks: Hooks) -> None:
    """Hook these functions, now or when their modules are imported."""
    for module, function, place, key in library_writers.FUNCTIONS:
        change = changing(files, "%s.%s" % (module, function), place, key)
        appear = whole.writing(place, key, library_writers.refuse_full_disk)
        hooks.replace(
            module, function, with_plain(_both(change, appear)), why="A library writes a file on rank 0 alone."
        )


def _both(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda original: outer(inner(original))


def with_plain(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let all ranks join the parts of shared tensors before one rank calls the wrapped function."""

    def wrap_plain(original: Any) -> Any:
        wrapped = wrap(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(one, GlobalTensor) for one in tensors_of(args, kwargs)):
                args, kwargs = plain(args), plain(kwargs)
            return wrapped(*args, **kwargs)

        return call

    return wrap_plain
