"""A syntax error in an imported local module is shown with its line and its caret."""

import broken_module  # noqa: F401
