"""Split a training in every way that PyTorch offers, without a change of the model.

`strategy` describes the split; `apply` applies it in one order; the other modules are its parts.
"""
