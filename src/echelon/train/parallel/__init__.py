"""Split a training in every way that PyTorch knows, from outside of an unchanged model.

`strategy` is the value that says how; `apply` does it in one order; the rest are the parts of that.
"""
