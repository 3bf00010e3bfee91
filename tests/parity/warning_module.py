"""Warn about its caller and about itself."""

import warnings


def deprecated() -> None:
    warnings.warn("use something else", DeprecationWarning, stacklevel=2)
    warnings.warn("hidden outside the script", DeprecationWarning, stacklevel=1)
