"""An exception in a module run with -m prints what plain Python prints."""

raise ValueError("run with -m")
