"""Logging is not set up before the script sets it up."""

import logging

print(logging.root.handlers, logging.root.level, sorted(logging.root.manager.loggerDict))
logging.warning("last resort, set up by the first call")
logging.getLogger("training").info("below the level")
