"""faulthandler is off unless the script turns it on."""

import faulthandler

print(faulthandler.is_enabled())
