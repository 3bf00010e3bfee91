"""The names of PyTorch that echelon replaces or needs, and the check that they are there before they are used.

A row is `module:name(parameters)`: the parameters that a hook counts on, in their order. PyTorch may add others behind
them. Without parentheses, a hook passes on whatever it gets. `tests/pytorch` compares the rows with what real runs
replace. A release that moves a name is told as such: it is no mistake of the script.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from ..errors import UsageError

OLDEST, NEWEST = "2.6", "2.15"  # the oldest and the newest release with which the tests ran: docs/versions.md
NEWEST_TRIED = "2.15.0"

# What every scaled script needs.
SCALE = """
torch:Tensor.backward(self, gradient, retain_graph)
torch.autograd:backward(tensors, grad_tensors)
torch.autograd:grad(outputs, inputs, grad_outputs)
torch.autograd:Function.apply
torch.autograd:Variable.__new__
torch.autograd.graph:GradientEdge
torch.autograd.graph:register_multi_grad_hook(tensors, fn)
torch:Tensor.register_hook(self, hook)
torch:Tensor.register_post_accumulate_grad_hook(self, hook)
torch:Tensor.retain_grad
torch.nn:Module.__call__(self)
torch.nn:Module.__setstate__(self, state)
torch.nn:Module.train(self, mode)
torch.nn:Module.zero_grad(self)
torch.nn:Module.state_dict(self)
torch.nn:Module.load_state_dict(self, state_dict)
torch.nn:Module.register_backward_hook(self, hook)
torch.nn:Module.register_full_backward_hook(self, hook)
torch.nn:Module.register_full_backward_pre_hook(self, hook)
torch.nn:DataParallel.__init__
torch.nn.modules.module:register_module_backward_hook(hook)
torch.nn.modules.module:register_module_full_backward_hook(hook)
torch.nn.modules.module:register_module_full_backward_pre_hook(hook)
torch:compile(model)
torch.optim.optimizer:register_optimizer_step_pre_hook(hook)
torch.optim.optimizer:register_optimizer_step_post_hook(hook)
torch.optim:Optimizer.__init__(self, params, defaults)
torch.optim:Optimizer.zero_grad(self)
torch.optim:Optimizer.state_dict(self)
torch.optim:Optimizer.load_state_dict(self, state_dict)
torch.nn.utils:clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
torch.nn.utils:clip_grad_value_(parameters, clip_value)
torch.nn.utils:clip_grads_with_norm_(parameters, max_norm, total_norm)
torch.nn.utils:get_total_norm(tensors, norm_type, error_if_nonfinite)
torch.nn.utils.clip_grad:clip_grad_norm_(parameters, max_norm)
torch.nn.utils.clip_grad:clip_grad_value_(parameters, clip_value)
torch.amp:GradScaler.unscale_(self, optimizer)
torch.amp:GradScaler.step(self, optimizer)
torch:autocast.__enter__(self)
torch.utils.data:DataLoader.__iter__(self)
torch.utils.data:DataLoader.__len__(self)
torch:Tensor.item
torch:Tensor.tolist
torch:Tensor.__float__
torch:Tensor.__format__(self, format_spec)
torch.distributed:init_process_group(backend, init_method, timeout, world_size, rank, store)
torch.distributed:PrefixStore
torch.distributed:GradBucket
torch.nn.functional:batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
torch.nn.functional:cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction)
torch.nn.functional:nll_loss(input, target, weight, size_average, ignore_index, reduce, reduction)
torch.nn.functional:scaled_dot_product_attention
torch.nn.functional:dropout(input, p, training, inplace)
torch.nn.functional:alpha_dropout(input, p, training, inplace)
torch.nn.functional:feature_alpha_dropout(input, p, training, inplace)
torch.nn.functional:dropout1d(input, p, training, inplace)
torch.nn.functional:dropout2d(input, p, training, inplace)
torch.nn.functional:dropout3d(input, p, training, inplace)
torch:dropout torch:dropout_ torch:alpha_dropout torch:feature_dropout torch:feature_alpha_dropout
torch:rand torch:randn torch:randint torch:rand_like torch:randn_like torch:randint_like
torch:normal torch:bernoulli torch:multinomial torch:randperm torch:poisson torch:binomial torch:rrelu
torch:Tensor.normal_ torch:Tensor.uniform_ torch:Tensor.bernoulli_ torch:Tensor.exponential_ torch:Tensor.random_
torch:Tensor.cauchy_ torch:Tensor.geometric_ torch:Tensor.log_normal_ torch:Tensor.bernoulli torch:Tensor.multinomial
torch:_sample_dirichlet torch:_standard_gamma torch:_standard_gamma_grad
torch._VF:lstm torch._VF:gru torch._VF:rnn_tanh torch._VF:rnn_relu
torch.nn.modules.rnn:_rnn_impls
torch:Generator torch:seed torch.random:seed
torch:save(obj, f) torch:load(f)
torch.jit:save(m, f)
torch.jit:script(obj)
torch.jit:ScriptModule.save(self, f)
torch.jit._script:RecursiveScriptModule.save(self, f)
torch.hub:download_url_to_file(url, dst)
torch.utils.checkpoint:checkpoint(function)
torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch(self)
torch.utils.data.dataloader:_BaseDataLoaderIter.__next__(self)
torch.utils.data.dataloader:_MultiProcessingDataLoaderIter
torch.nn.modules.batchnorm:_NormBase
torch.nn.modules.batchnorm:_BatchNorm
torch.utils._pytree:tree_map torch.utils._pytree:tree_iter torch.utils._pytree:tree_map_only
torch.utils._python_dispatch:TorchDispatchMode
torch.utils._python_dispatch:_disable_current_modes
torch:Tensor._make_wrapper_subclass torch:Tensor._version
torch._C:TensorBase.untyped_storage torch._C:TensorBase.item torch._C:TensorBase.grad
torch._C:_disabled_torch_function_impl torch._C:DisableTorchFunction torch._C:DisableTorchFunctionSubclass
torch._C:_len_torch_dispatch_stack torch._C:_len_torch_function_stack torch._C:_get_function_stack_at
torch._C:_push_on_torch_function_stack torch._C:_pop_torch_function_stack
torch._C:_storage_Use_Count torch._C:_current_graph_task_id torch._C:_get_tracing_state
torch._C._functorch:maybe_current_level
torch.distributed.distributed_c10d:_get_default_store
torch.distributed.distributed_c10d:_world
"""
# What a tool that looks at a model calls: without it, the tool sees the model of a rank.
LOOK = """
torch.jit:trace(func) torch.jit:trace_module(mod) torch.jit._trace:trace(func) torch.jit._trace:trace_module(mod)
torch.fx:symbolic_trace(root) torch.fx._symbolic_trace:symbolic_trace(root)
torch.onnx:export(model) torch.export:export(mod)
"""
# What the report of a run measures.
MEASURE = """
torch.autograd:backward(tensors, grad_tensors)
torch.optim.optimizer:register_optimizer_step_pre_hook(hook)
torch.optim.optimizer:register_optimizer_step_post_hook(hook)
torch.utils.data.dataloader:_BaseDataLoaderIter.__next__(self)
torch.utils.data.dataloader:_BaseDataLoaderIter._next_index(self)
torch.nn.utils:clip_grad_norm_(parameters, max_norm) torch.amp:GradScaler.scale(self, outputs)
torch:save(obj, f)
torch:Tensor.item
torch.distributed:Work.wait
torch.autograd.variable:Variable._execution_engine
torch.utils._pytree:tree_map torch.utils._python_dispatch:_disable_current_modes
torch._C:TensorBase.item torch._C:DisableTorchFunction torch._C:_current_graph_task_id
"""
# What `echelon profile` needs; its trials give loaders more workers.
PROFILE = """
torch.optim.optimizer:register_optimizer_step_post_hook(hook)
torch.profiler:profile
torch.utils.data:DataLoader.__init__
"""
# What a training that is saved and continued needs besides.
SAVE = """
torch:Tensor.numpy torch:Tensor.__array__ torch:Tensor.__bool__ torch:Tensor.__int__ torch:Tensor.__index__
torch:Tensor.__complex__ torch:Tensor.__contains__(self, element) torch:Tensor.__repr__(self)
torch:Tensor.equal torch:Tensor.allclose torch:Tensor.is_nonzero torch:Tensor.get_device
torch:Tensor.nonzero torch:Tensor.argwhere torch:Tensor.where torch:Tensor.masked_select torch:Tensor.bincount
torch:Tensor.unique(self, sorted, return_inverse, return_counts, dim)
torch:Tensor.unique_consecutive(self, return_inverse, return_counts, dim)
torch:equal torch:allclose torch:is_nonzero torch:nonzero torch:argwhere torch:where torch:masked_select torch:bincount
torch:unique torch:unique_consecutive torch:tensor torch:as_tensor
torch.amp:GradScaler.__init__ torch.amp:GradScaler.scale(self, outputs) torch.amp:GradScaler.get_scale(self)
torch.amp:GradScaler.update(self, new_scale)
torch:Tensor.__getitem__
torch.nn:Module.__init__(self)
"""
# What `echelon fit` needs to trace a script without memory.
TRACE = """
torch._subclasses.fake_tensor:FakeTensor.device torch._subclasses.fake_tensor:FakeTensor.__deepcopy__
torch._subclasses.fake_tensor:FakeTensorMode.from_tensor(self, tensor)
torch._subclasses.fake_tensor:DataDependentOutputException
torch._subclasses.fake_tensor:DynamicOutputShapeException
torch.utils._device:_device_constructors
torch.utils._device:DeviceContext.__torch_function__(self, func, types, args, kwargs)
torch._C._nn:_parse_to
torch._C._functorch:is_functorch_wrapped_tensor torch._C._functorch:get_unwrapped
torch.optim.optimizer:Optimizer.__init__(self, params, defaults)
torch.utils.data.dataloader:_BaseDataLoaderIter.__next__(self)
torch.optim.optimizer:_foreach_supported_types
torch.optim.optimizer:_default_to_fused_or_foreach(params, differentiable, use_fused)
torch.amp:GradScaler._maybe_opt_step
torch.amp.autocast_mode:autocast.__init__(self, device_type, dtype)
torch:Tensor.to torch:Tensor.cuda torch:Tensor.cpu torch:Tensor.pin_memory torch:Tensor.type torch:Tensor.data
torch.nn:Module.register_parameter(self, name, param)
torch.utils:swap_tensors(t1, t2)
torch:set_default_tensor_type(t) torch:is_autocast_enabled torch:get_autocast_dtype torch:histc torch:Generator
"""
# What DTensors need: --scale fsdp, tensor and context, and strategies by hand.
DTENSOR = """
torch.distributed.tensor:DTensor._op_dispatcher
torch.distributed.tensor._utils:compute_local_shape_and_global_offset(global_shape, mesh, placements)
torch.distributed.tensor._op_schema:OpSchema
torch.nn.functional:_in_projection_packed(q, k, v, w, b)
torch.distributed.tensor:DTensor.item torch.distributed.tensor:DTensor.tolist torch.distributed.tensor:DTensor.numpy
torch.distributed.tensor:DTensor.__array__ torch.distributed.tensor:DTensor.__float__
torch.distributed.tensor:DTensor.__int__ torch.distributed.tensor:DTensor.__bool__
torch.distributed.tensor:DTensor.__format__ torch.distributed.tensor:DTensor.__iter__
torch.distributed.tensor:DTensor.__repr__
"""
# What stages need: --scale pipeline, and strategies by hand.
PIPELINE = """
torch.distributed.pipelining:PipelineStage._prepare_forward_infra
torch.distributed.pipelining:PipelineStage
"""
FEATURES: dict[str, str] = {
    "scale": SCALE, "look": LOOK, "measure": MEASURE, "profile": PROFILE, "save": SAVE, "trace": TRACE,
    "dtensor": DTENSOR, "pipeline": PIPELINE,
}  # fmt: skip
"""The rows by the part of echelon that needs them; without "look", "measure" and "profile" a training is the same."""
_MODULES = {"dtensor": "torch.distributed.tensor", "pipeline": "torch.distributed.pipelining"}


class UnknownPyTorch(UsageError):
    """A name of PyTorch that echelon needs is missing, or is not what it was."""


UnknownPyTorch.__module__ = "echelon"  # as people know it, from wherever it was imported


class Target(NamedTuple):
    """A name of PyTorch."""

    module: str
    attribute: str
    parameters: tuple[str, ...] | None
    """The parameters that a hook counts on; None for any."""

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"


def of(feature: str) -> list[Target]:
    """Return the names that a part of echelon needs."""
    return [_parsed(row) for row in FEATURES[feature].replace(", ", ",").split()]


def _parsed(row: str) -> Target:
    module, _, rest = row.partition(":")
    attribute, bracket, parameters = rest.partition("(")
    return Target(module, attribute, tuple(parameters.rstrip(")").split(",")) if bracket else None)


def check(*features: str) -> None:
    """Raise UnknownPyTorch if PyTorch lacks a name that one of these parts of echelon needs, or has changed it."""
    importlib.import_module("torch")
    for feature in features:
        if feature in _MODULES:
            importlib.import_module(_MODULES[feature])  # which the run imports in any case
    wrong = [found for feature in features for found in changes(feature)]
    if wrong:
        raise error_of(wrong)


def changes(feature: str) -> list[str]:
    """Return what has changed, "`torch.save` is missing"; modules that nobody has imported yet are not looked at."""
    return [found for found in map(_change, of(feature)) if found]


def error_of(wrong: Sequence[str]) -> UnknownPyTorch:
    way_out = f"pip install torch=={NEWEST_TRIED}; or, for a script that distributes itself, echelon run --scale off …"
    return UnknownPyTorch(describe(wrong), hint=way_out)


def describe(wrong: Sequence[str]) -> str:
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    ours = f"echelon {_own_version()} does not know this PyTorch ({_version()})"
    return f"{ours}: {wrong[0]}{more}; tested with {OLDEST} to {NEWEST}"


def end(error: UnknownPyTorch) -> NoReturn:
    """Write the error and end this rank, whose script must not catch it; `launch.failure` knows the first words."""
    sys.stderr.write(f"echelon.{type(error).__name__}: {error.message}\n  way out: {error.hint}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def error_of_missing(module: str, attribute: str) -> UnknownPyTorch | None:
    """Return the error for a name that a module lacks at its import; None if echelon can do without the name."""
    target = next((one for one in of("scale") if (one.module, one.attribute) == (module, attribute)), None)
    return None if target is None else error_of([f"`{target.name}` is missing"])


def _change(target: Target) -> str:
    module = sys.modules.get(target.module)
    if module is None:
        return "" if _can_be_imported(target.module) else f"`{target.module}` is missing"
    value: Any = module
    for word in target.attribute.split("."):
        value = getattr(value, word, _change)
        if value is _change:
            return f"`{target.name}` is missing"
    return "" if target.parameters is None or _takes(value, target.parameters) else f"`{target.name}` has changed"


def _can_be_imported(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _takes(function: Any, parameters: tuple[str, ...]) -> bool:
    """Say whether a function has these parameters first; one of C cannot be asked."""
    if not callable(function):
        return False
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return True
    names = code.co_varnames[: code.co_argcount]
    return tuple(names[: len(parameters)]) == parameters


def _version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "unknown"))


def _own_version() -> str:
    return str(getattr(sys.modules.get(__name__.partition(".")[0]), "__version__", ""))
