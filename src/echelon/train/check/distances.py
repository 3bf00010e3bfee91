"""How far two tensors are apart, in float64: the checks inside ranks and `echelon prove` measure with it."""

import torch


def doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers in float64."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.detach().double()


def distance(tensor: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference of two tensors."""
    return float((doubles(tensor) - doubles(wanted)).norm())


def multiple(tensor: torch.Tensor, wanted: torch.Tensor, *, tolerance: float = 1e-3) -> float:
    """Return the factor by which a tensor is a multiple of another, up to a part of its norm; 0: it is no multiple."""
    if tensor.shape != wanted.shape:
        return 0.0
    tensor, wanted = doubles(tensor), doubles(wanted)
    square = float((wanted * wanted).sum())
    factor = float((tensor * wanted).sum()) / square if square else 0.0
    return factor if distance(tensor, factor * wanted) <= tolerance * abs(factor) * square**0.5 else 0.0
