"""The three numbers for the last line of a run: how fast it was, how much of its steps was computing, idle devices."""

from __future__ import annotations

from echelon.monitor.account import Account
from echelon.monitor.training import COMMUNICATION, DATA, SAVES
from echelon.units import rate

LEAST_SECONDS = 10.0
"""The steps of a shorter run tell nothing."""
LEAST_LOOKS = 6


def of_run(account: Account) -> str:
    """Return the numbers that are known, such as "1,343 samples/s · 83 % computing · 1 of 8 devices idle"."""
    training = account.training
    if training is None or training.seconds < LEAST_SECONDS:
        return ""
    words = []
    if training.samples_per_second is not None:
        words.append(f"{rate(training.samples_per_second)} samples/s")
    elif account.steps is not None:
        words.append(f"{rate(account.steps.per_second)} steps/s")
    words.append(f"{1 - training.share(DATA, COMMUNICATION, SAVES):.0%} computing")
    looked = [device for device in account.devices if device.looks >= LEAST_LOOKS]
    if looked:
        words.append(f"{sum(device.most == 0 for device in looked)} of {len(looked)} devices idle")
    return " · ".join(words)
