"""Warnings have their default filters: a DeprecationWarning is shown in the script alone."""

import warnings

import warning_module

print([entry[0] + " " + entry[2].__name__ for entry in warnings.filters])
warnings.warn("from the script", DeprecationWarning, stacklevel=1)
warnings.warn("for users", UserWarning, stacklevel=1)
warning_module.deprecated()
for _ in range(2):
    warnings.warn("once only", RuntimeWarning, stacklevel=1)
