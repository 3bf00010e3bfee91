"""A module that is not installed is named."""

import a_module_that_nobody_has  # noqa: F401
