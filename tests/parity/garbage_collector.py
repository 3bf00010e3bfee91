"""The garbage collector is on, with the usual thresholds and nothing frozen."""

import gc

print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage)
print("many frozen" if gc.get_freeze_count() else "0 frozen")
