"""Find weights that a script changes by its own arithmetic, without an optimizer."""

import ast
from collections.abc import Iterable, Iterator

from echelon.script.branches import tail

CHANGES_WEIGHTS, DESCENDS = "$weights", "$descent"
_LISTS_OF_WEIGHTS = ("parameters", "named_parameters")
_IN_PLACE = ("add_", "sub_", "addcmul_", "addcdiv_")
_PRODUCTS = (ast.Mult, ast.MatMult)


def signs(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the signs of such changes.

    `$weights`: a loop over `parameters()` changes them in place, or a loop adds products of matrices to a tensor.
    `$descent`: a product is subtracted, as a learning rate times a gradient is; it tells something beside gradients.
    """
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.While))]
    inner = [node for loop in loops for part in loop.body for node in ast.walk(part)]
    changes = any(isinstance(loop, ast.For) and _changes_weights(loop) for loop in loops) or any(
        map(_adds_matrices, inner)
    )
    return {*([CHANGES_WEIGHTS] if changes else []), *([DESCENDS] if any(map(_subtracts_product, inner)) else [])}


def _changes_weights(loop: ast.For) -> bool:
    """Say whether a loop goes over weights, and changes them or their data."""
    if not any(isinstance(node, ast.Call) and tail(node.func) in _LISTS_OF_WEIGHTS for node in ast.walk(loop.iter)):
        return False
    weights = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return any(_root(tensor) in weights for part in loop.body for tensor in _changed(part))


def _changed(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the tensors that a statement changes in place, or gives new data."""
    for node in ast.walk(statement):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
            yield node.target
        elif isinstance(node, ast.Assign):
            yield from (target for target in node.targets if tail(target) == "data")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _IN_PLACE:
            yield node.func.value


def _root(tensor: ast.expr) -> str:
    """Return the name of a tensor, or of the one whose data it is."""
    if isinstance(tensor, ast.Attribute) and tensor.attr == "data":
        tensor = tensor.value
    return tensor.id if isinstance(tensor, ast.Name) else ""


def _adds_matrices(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, (ast.Add, ast.Sub))
        and any(isinstance(part, ast.MatMult) for part in ast.walk(node.value))
    )


def _subtracts_product(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "sub_"
    term = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
    return (
        isinstance(node, (ast.BinOp, ast.AugAssign))
        and isinstance(node.op, ast.Sub)
        and isinstance(term, ast.BinOp)
        and isinstance(term.op, _PRODUCTS)
    )
