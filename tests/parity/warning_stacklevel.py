"""A warning whose stack level is beyond the script is given to `sys`, not to a launcher."""

import warnings

warnings.warn("beyond", UserWarning, stacklevel=2)
warnings.warn("far beyond", UserWarning, stacklevel=9)
