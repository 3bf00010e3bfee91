"""Libraries that write to a path by themselves: their function as a whole is what one rank does."""

from typing import Any, Callable

from ..view.tensors import View, plain, tensors_of
from .folders import changing
from .imports import Hooks
from .sharing import Files

# module, function, and which argument names the file
_FUNCTIONS = (
    ("torch", "save", 1, "f"),
    ("torch.jit", "save", 1, "f"),
    ("torch.jit", "ScriptModule.save", 1, "f"),
    ("safetensors.torch", "save_file", 1, "filename"),
    ("safetensors.torch", "save_model", 1, "filename"),
    ("safetensors.numpy", "save_file", 1, "filename"),
    ("cv2", "imwrite", 0, "filename"),
    ("torchvision.io", "write_file", 0, "filename"),
    ("torchvision.io", "write_jpeg", 1, "filename"),
    ("torchvision.io", "write_png", 1, "filename"),
    ("torchaudio", "save", 0, "uri"),
    ("soundfile", "write", 0, "file"),
    ("onnx", "save", 1, "f"),
    ("pyarrow.parquet", "write_table", 1, "where"),
)


def install(files: Files, hooks: Hooks) -> None:
    """Hook them now or when they are imported."""
    for module, function, place, key in _FUNCTIONS:
        hooks.replace(module, function, with_plain(changing(files, "%s.%s" % (module, function), place, key)))


def with_plain(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let all ranks put the parts of shared tensors together before one of them does what is wrapped."""

    def wrap_plain(original: Any) -> Any:
        wrapped = wrap(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(one, View) for one in tensors_of(args, kwargs)):
                args, kwargs = plain(args), plain(kwargs)
            return wrapped(*args, **kwargs)

        return call

    return wrap_plain
