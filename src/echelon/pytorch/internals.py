"""The one door to PyTorch's private names: a function, or a name, for each. Tried with 2.6 to 2.15.

A name that a version lacks has a public replacement here, or is None. `targets` checks before a training that the
names are there. A test refuses private names of PyTorch in any other file.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_private: Any = torch  # the module, for names that its stubs lack


def _of(module: str, name: str) -> Any:
    """Return a name of a module; None if this PyTorch lacks it, which `targets.check` tells before it is used."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


_C: Any = _of("torch", "_C")
tree_map = _of("torch.utils._pytree", "tree_map")
tree_map_only = _of("torch.utils._pytree", "tree_map_only")
tree_iter = _of("torch.utils._pytree", "tree_iter")
DispatchMode = _of("torch.utils._python_dispatch", "TorchDispatchMode")
without_modes = _of("torch.utils._python_dispatch", "_disable_current_modes")
"""A context in which no mode sees what PyTorch computes."""
LoaderIterator = _of("torch.utils.data.dataloader", "_BaseDataLoaderIter")
"""What iter(loader) returns, with workers and without."""
WorkersIterator = _of("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
NormLayer = _of("torch.nn.modules.batchnorm", "_NormBase")
"""Layers with running statistics: batch norm and instance norm."""
BatchNormLayer = _of("torch.nn.modules.batchnorm", "_BatchNorm")
TensorBase = _of("torch._C", "TensorBase")  # the class below torch.Tensor, whose methods no script replaces
no_torch_function = _of("torch._C", "_disabled_torch_function_impl")
"""The `__torch_function__` of a class whose operations go straight to `__torch_dispatch__`."""
plain_functions = _of("torch._C", "DisableTorchFunction")
"""A context without `__torch_function__`, of classes and of modes."""
plain_classes = _of("torch._C", "DisableTorchFunctionSubclass")
"""A context without the `__torch_function__` of classes."""
FULLY_SHARD_ON_CPU = (2, 9)  # the first version whose fully_shard trains on CPUs
UNTRACKED_ATTRIBUTES = ("_grad_fn", "_version")  # attributes of a tensor that no rank shares


def numbers(version: str = torch.__version__) -> tuple[int, int]:
    """Return the major and the minor number of a version: (2, 15) for "2.15.0+cu132"."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def one_frame_up(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for torch.jit.script when another function calls it.

    torch.jit.script looks up the names in a class or function in the frame of its caller.
    """
    return {**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1}


# Classes and functions


def class_method(owner: type, name: str) -> Callable[[type], Callable[..., Any]]:
    """Return what binds a class method to a class, whether Python or C defines it.

    torch.autograd.Function.apply is a classmethod up to 2.13, and a classmethod_descriptor of C from 2.14 on.
    """
    descriptor = vars(owner)[name]
    return lambda cls: descriptor.__get__(None, cls)


def num_dispatch_modes() -> int:
    """Return how many modes see each operation now."""
    return int(_C._len_torch_dispatch_stack())


def push_function_mode(mode: Any) -> None:
    """Enter a mode of torch functions that another call leaves."""
    _C._push_on_torch_function_stack(mode)


def pop_function_mode() -> None:
    """Leave the innermost mode of torch functions."""
    _C._pop_torch_function_stack()


def innermost_function_mode() -> Any:
    """Return the innermost mode of torch functions; None outside of all modes."""
    num_modes = _C._len_torch_function_stack()
    return _C._get_function_stack_at(num_modes - 1) if num_modes else None


def is_going_backward() -> bool:
    """Say whether this thread computes a part of a pass backward."""
    return bool(_C._current_graph_task_id() != -1)


def at_end_of_backward(act: Callable[[], None]) -> None:
    """Call a function when the present pass backward ends, in the order of these calls."""
    torch.autograd.Variable._execution_engine.queue_callback(act)


def is_traced() -> bool:
    """Say whether a graph of a model is drawn now, and nothing is computed."""
    return bool(_C._get_tracing_state()) or bool(getattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", False))


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of what torch.func.grad and torch.vmap hand to a function."""
    while _C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return tensor


def device_constructors() -> Any:
    """Return the functions that make a tensor on the default device."""
    from torch.utils._device import _device_constructors

    return _device_constructors()


def device_context() -> Any:
    """Return the class behind `with torch.device(…):` and torch.set_default_device()."""
    from torch.utils._device import DeviceContext

    return DeviceContext


def parsed_move(*args: Any, **kwargs: Any) -> Any:
    """Return device, dtype, non_blocking and memory format of the arguments of Tensor.to()."""
    return _C._nn._parse_to(*args, **kwargs)


def has_xpu() -> bool:
    return bool(torch.xpu._is_compiled())


DRIVER_STARTS = ("_cuda_init", "_xpu_init")
"""Functions of torch._C: the LAZY_INIT of the device's module calls one of these at the first use."""
DRIVER_COUNTS = ("_cuda_getDeviceCount", "_xpu_getDeviceCount")
"""Functions of torch._C that start the driver, and return only a number."""
LAZY_INIT = "_lazy_init"


def driver_functions(names: Iterable[str]) -> list[tuple[Any, str]]:
    """Return the owner and the name of each of these functions that this build has."""
    return [(_C, name) for name in names if hasattr(_C, name)]


# Tensors


def wrapper_of(cls: Any, shape: Any, **settings: Any) -> Any:
    """Make a tensor of a class that has a shape, a type and a device, and no memory."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, **settings)


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Say whether a function is called with the gradients of a tensor."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def version(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return tensor._version


def storage_key(tensor: torch.Tensor) -> int:
    """Return the identity of the memory that a tensor shares with its views."""
    return int(tensor.untyped_storage()._cdata)


def is_transformed() -> bool:
    """Say whether a function runs under torch.func's vmap, grad, jacrev or hessian."""
    return _C._functorch.maybe_current_level() is not None


def num_storage_users(tensor: torch.Tensor) -> int:
    """Return how many tensors and Python objects use the memory of a tensor, the question itself included."""
    return int(_C._storage_Use_Count(tensor.untyped_storage()._cdata))


def mark_as_parameter(tensor: Any) -> None:
    """Let isinstance(tensor, nn.Parameter) be true for a tensor of another class."""
    tensor._is_param = True


def is_marked_as_parameter(tensor: Any) -> bool:
    return bool(getattr(tensor, "_is_param", False))


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of a sparse tensor that may not be coalesced."""
    return tensor._indices(), tensor._values()


def norms(tensors: list[torch.Tensor], kind: float) -> list[torch.Tensor]:
    """Return the norm of each tensor, in few calls of a device."""
    if hasattr(torch, "_foreach_norm"):
        return list(torch._foreach_norm(tensors, kind))
    return [torch.linalg.vector_norm(tensor, kind) for tensor in tensors]


def multiply(tensors: list[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply each tensor in place, in few calls of a device."""
    if hasattr(torch, "_foreach_mul_"):
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


# Operations


def read_of_number() -> Any:
    """Return the operation by which a number is read: item()."""
    return torch.ops.aten._local_scalar_dense.default


def attention_on_cpu() -> tuple[Any, Any]:
    """Return the operation of attention on a CPU, and that of its gradient."""
    aten = torch.ops.aten
    return (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )


def attention_operations() -> Iterator[Any]:
    for kind in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"):
        packet = getattr(torch.ops.aten, "_scaled_dot_product_" + kind, None)
        if packet is not None:
            yield packet.default


def unique() -> Any:
    return torch.ops.aten._unique2.default


def pack() -> Any:
    """Return the operation of pack_padded_sequence."""
    return torch.ops.aten._pack_padded_sequence.default


def ctc_loss() -> tuple[Any, Any]:
    """Return the operations of the CTC loss, for lengths as lists and as tensors."""
    return torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor


def gamma_gradient(concentration: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    return _private._standard_gamma_grad(concentration, sample)  # type: ignore[no-any-return]


def packet_of(operation: Any) -> Any:
    """Return an operation without its overload."""
    return getattr(operation, "_overloadpacket", None)


def autograd_function_of(node: object) -> "type | None":
    """Return the class of `torch.autograd.Function` whose backward() a node of a graph calls; None for any other."""
    return getattr(type(node), "_forward_cls", None)


def schema_of(operation: Any) -> Any:
    """Return the names and types of an operation's arguments."""
    return operation._schema


GROUPED_MM, DIRICHLET, GAMMA = "_grouped_mm", "_sample_dirichlet", "_standard_gamma"  # functions of torch
RNN_FUNCTIONS = "torch._VF"  # the module with lstm, gru, rnn_tanh and rnn_relu


def rnn_functions() -> Any:
    """Return the module RNN_FUNCTIONS, as torch.nn.modules.rnn uses it."""
    return _private._VF


def rnn_kinds() -> dict[str, Any]:
    """Return the functions of torch.nn.modules.rnn by their names RNN_TANH and RNN_RELU."""
    return nn.modules.rnn._rnn_impls


IN_PROJECTION = "_in_projection_packed"
"""The function of torch.nn.functional that computes queries, keys and values at once."""


# Modules, optimizers, distributions


def weights(module: nn.Module) -> dict[str, Any]:
    """Return a module's own weights, which may be None; the dict is the module's."""
    return module._parameters


def buffers(module: nn.Module) -> dict[str, Any]:
    """Return a module's own buffers, which may be None; the dict is the module's."""
    return module._buffers


def children(module: nn.Module) -> dict[str, Any]:
    """Return a module's own modules, which may be None; the dict is the module's."""
    return module._modules


def unsaved_buffers(module: nn.Module) -> Any:
    return module._non_persistent_buffers_set


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""The attributes of a module with its hooks."""


COMPOSABLE = "__composable_api_state_key"
"""The names under which fully_shard() and its like keep their states at a module begin with it."""


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """Return a module's hooks around forward() and backward; the dicts are the module's."""
    return [module.__dict__.get(name, {}) for name in HOOKS]


def uncompiled(module: Any) -> Any:
    """Return the module that torch.compile has wrapped, or the module itself."""
    return getattr(module, "_orig_mod", module)


def keep_versions(state: Any, like: Any) -> None:
    """Give a state_dict the versions of modules that another one has; loading looks at them."""
    if hasattr(like, "_metadata"):
        state._metadata = like._metadata


def layer_resets() -> tuple[str, ...]:
    """Return the methods by which a layer initializes its weights: that of attention and Transformer is private."""
    return "reset_parameters", "_reset_parameters"


def batch_shape(distribution: Any) -> torch.Size:
    """Return the batch shape of a distribution, which its property may refuse."""
    return distribution._batch_shape  # type: ignore[no-any-return]


def set_batch_shape(distribution: Any, shape: Sequence[int]) -> None:
    """Change the batch shape of a distribution whose parameters have changed."""
    distribution._batch_shape = torch.Size(shape)


SCALER_STEP = "_maybe_opt_step"  # the method of torch.amp.GradScaler that steps unless a gradient is infinite
FOREACH_TYPES, FOREACH_CHOICE = "_foreach_supported_types", "_default_to_fused_or_foreach"
"""Names of torch.optim.optimizer: the tensors that an optimizer takes as a list, and the choice to do so."""


# Loaders


def dataset_fetcher() -> Any:
    """Return the class that fetches the samples of a batch in this process."""
    from torch.utils.data._utils import fetch

    return fetch._MapDatasetFetcher


def ends_of_workers(iterator: Any) -> list[int]:
    """Return the exit codes of a loader's workers that have ended, those of signals negative."""
    return [worker.exitcode for worker in getattr(iterator, "_workers", ()) if worker.exitcode is not None]


def leave_workers(iterator: Any) -> None:
    """Let the end of a loader's iterator not stop its workers."""
    iterator._shutdown = True


LOADER_ITERATOR = "_iterator"  # the attribute of a DataLoader with the iterator that its workers persist in
INDEX_SAMPLER, NEXT_INDEX, INDICES = "_index_sampler", "_next_index", "_sampler_iter"
"""What gives a loader and its iterators indices; what draws the next ones; what it draws from in this pass."""
IN_ORDER = "_in_order"
"""Whether an iterator with workers gives batches in the order of their indices; before PyTorch 2.7 each does."""


def is_batching(loader: Any) -> bool:
    """Say whether a DataLoader makes batches itself."""
    return bool(loader._auto_collation)


def dataset_of(iterator: Any) -> Any:
    return iterator._dataset


# Tensors without memory, for `echelon fit`: their module takes 0.3 s to import


def fake_tensors() -> Any:
    """Return the module with FakeTensor, FakeTensorMode and the errors for shapes that depend on values."""
    from torch._subclasses import fake_tensor

    return fake_tensor
