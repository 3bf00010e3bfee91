"""The names of private modules of PyTorch, for hooks that wait for their import; this file imports no PyTorch."""

TENSOR = "torch._tensor"
TRACERS = ("torch.jit._trace", "torch.fx._symbolic_trace")
"""Where torch.jit.trace and torch.fx.symbolic_trace are, which other modules import from there."""
SCRIPTED_MODULES = "torch.jit._script"
COMPILER_PARTS = ("torch._inductor", "torch._dynamo")
COMPILER_CALLBACKS = "torch._dynamo.callback"
COLLECTIVES = "torch.distributed._functional_collectives"
FULLY_SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
