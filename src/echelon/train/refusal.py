"""What cannot be scaled, or was not, is said and stops the run."""


class Refusal(RuntimeError):
    """The script cannot be trained on several devices as it stands; the message holds the reason and the way out."""

    def __init__(self, reason: str, way_out: str, *, factor: float = 0.0) -> None:
        super().__init__("%s\n  way out: %s" % (reason, way_out))
        self.factor = factor
        """By what a gradient is a multiple of the right one; 0: it is none."""


Refusal.__module__ = "echelon"  # as people know it, from wherever it was imported
