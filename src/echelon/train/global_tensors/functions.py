"""Names of PyTorch's functions, grouped by their rule; a method, an operator and a torch.* function share a name."""

from ...pytorch import internals

_ARITHMETIC = (
    "add", "sub", "subtract", "rsub", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder",
    "fmod", "pow", "float_power", "maximum", "minimum", "fmax", "fmin", "atan2", "lerp", "addcmul", "addcdiv", "xlogy",
    "where", "masked_fill", "clamp", "clip", "clamp_min", "clamp_max", "nan_to_num", "eq", "ne", "lt", "le", "gt", "ge",
    "less", "greater", "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or",
    "bitwise_not", "bitwise_xor", "isclose", "isnan", "isinf", "isfinite", "broadcast_tensors",
)  # fmt: skip
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "rdiv", "div", "floordiv", "rfloordiv", "mod",
    "rmod", "pow", "rpow", "eq", "ne", "lt", "le", "gt", "ge", "and", "rand", "or", "ror", "xor", "rxor", "invert",
    "neg", "pos", "abs",
)  # fmt: skip
_OF_ONE = (
    "neg", "negative", "positive", "abs", "absolute", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
    "rsqrt", "square", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "sigmoid", "logit", "sign", "sgn", "round", "floor", "ceil", "trunc", "frac", "erf", "erfc", "reciprocal",
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "hardtanh",
    "hardsigmoid", "hardswish", "logsigmoid", "threshold", "tanhshrink",
)  # fmt: skip
_CONVERSIONS = (
    "to", "type", "type_as", "float", "double", "half", "bfloat16", "int", "long", "short", "bool", "byte", "char",
    "cpu", "cuda", "detach", "clone", "contiguous", "requires_grad_", "pin_memory",
    "zeros_like", "ones_like", "full_like", "empty_like",
)  # fmt: skip
_CHANGING = (*_ARITHMETIC, *_OF_ONE, "detach", "zero", "fill", "copy")

POINTWISE = frozenset(
    (
        *_ARITHMETIC, *_OF_ONE, *_CONVERSIONS, *(name + "_" for name in _CHANGING),
        *(f"__{name}__" for name in _OPERATORS), *(f"__i{name}__" for name in _OPERATORS),
    )
)  # fmt: skip
"""Elementwise functions: each element of the result depends on the elements in the same place."""

LINEAR: dict[str, str] = {
    **dict.fromkeys(("neg", "negative", "positive", "pos", "clone", "detach", "to", "float", "double", "cpu", "cuda",
                     "contiguous"), "unary"),
    **dict.fromkeys(("mul", "multiply", "rmul"), "product"),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), "quotient"),
    **dict.fromkeys(("add", "radd", "sub", "subtract", "rsub"), "sum"),
}  # fmt: skip
"""Functions that are linear in a total, and so may be computed with each rank's part, by their kind."""

ALONG: dict[str, tuple[int, object, int]] = {
    **dict.fromkeys(("sum", "mean", "prod", "std", "var", "max", "min", "argmax", "argmin", "all", "any", "median",
                     "softmax", "log_softmax", "softmin", "logsumexp", "cumsum", "cumprod", "flip", "gather",
                     "index_select", "narrow", "select", "squeeze", "count_nonzero"), (1, None, 0)),
    **dict.fromkeys(("amax", "amin"), (1, (), 0)),
    **dict.fromkeys(("sort", "argsort", "mode"), (1, -1, 0)),
    **dict.fromkeys(("topk", "kthvalue"), (2, -1, 0)),
    **dict.fromkeys(("norm", "roll", "take_along_dim", "repeat_interleave"), (2, None, 0)),
    **dict.fromkeys(("normalize", "cosine_similarity"), (2, 1, 0)),
    **dict.fromkeys(("chunk", "split"), (2, 0, 0)),
    "unbind": (1, 0, 0),
    "unsqueeze": (1, 0, 1),
}  # fmt: skip
"""Functions along a dim: the position of the dim argument, its default, and the number of dims that the result adds."""

RESHAPES = ("view", "reshape", "flatten", "view_as", "reshape_as")
DRAWS = ("rand_like", "randn_like", "randint_like", "bernoulli", "normal_", "uniform_", "bernoulli_", "random_")
"""Functions that draw random numbers: every rank draws the same numbers for all rows, as one device does."""

READS = frozenset(
    (
        "item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "__complex__", "__format__",
        "__repr__", "__str__", "__array__", "__reduce_ex__", "equal", "allclose", "__contains__", "argmax", "argmin",
        "eq", "ne", "lt", "le", "gt", "ge", "__deepcopy__",
    )
)  # fmt: skip
"""Functions whose result needs no gradient."""

LOCAL_ATTRIBUTES = frozenset(("requires_grad", "is_leaf", "grad_fn", "retains_grad", *internals.UNTRACKED_ATTRIBUTES))
IN_PLACE_OPERATORS = frozenset(f"__i{name}__" for name in (*_OPERATORS, "lshift", "rshift"))
