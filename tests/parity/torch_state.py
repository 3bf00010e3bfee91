"""Torch starts as in a fresh process: threads, default type and device, nothing initialised."""

import torch

print(torch.get_num_threads(), torch.get_num_interop_threads())
print(torch.get_default_dtype(), torch.get_default_device(), torch.tensor(1).device)
print(torch.cuda.is_initialized(), torch.distributed.is_initialized())
print(torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
print(torch.manual_seed(7).initial_seed(), torch.rand(3).tolist())
