"""An exception in an imported local module shows the script's import line and the module's line."""

import failing_module  # noqa: F401
