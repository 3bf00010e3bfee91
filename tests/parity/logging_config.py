"""`logging.basicConfig` takes effect and writes to stderr."""

import logging

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(module)s:%(lineno)d %(message)s")
logging.getLogger("training").info("step %d", 1)
try:
    1 / 0  # noqa: B018
except ZeroDivisionError:
    logging.exception("failed")
