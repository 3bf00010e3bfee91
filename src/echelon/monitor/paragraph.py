"""The paragraph of a run for an application for more hours: what was used, how well, and what was lost."""

from __future__ import annotations

from echelon.monitor.account import Account
from echelon.monitor.phases import RESTARTS
from echelon.monitor.recorded import Recorded
from echelon.monitor.report import JOULES_PER_KWH
from echelon.monitor.training import COMMUNICATION, DATA, SAVES, Training
from echelon.units import amount, cost, duration, rate

_WAITS = {COMMUNICATION: "waiting for other processes", DATA: "waiting for data", SAVES: "saving"}


def of_run(recorded: Recorded, account: Account) -> str:
    """Return the sentences that the files of a run support, and no other."""
    sentences = [used(recorded, account)]
    training = account.training
    if training is not None and training.seconds:
        sentences.append(_shares(training))
        if training.samples_per_second is not None:
            sentences.append(f"All processes together computed {rate(training.samples_per_second)} samples a second.")
    if account.devices:
        busy = sum(device.mean for device in account.devices) / len(account.devices)
        idle = sum(device.most == 0 for device in account.devices)
        sentences.append(f"The devices were busy {busy:.0f} % of the time; {idle} of {len(account.devices)} were idle.")
    if account.share(RESTARTS):
        sentences.append(f"Failures cost {account.share(RESTARTS):.1%} of the time.")
    return " ".join(sentences)


def used(recorded: Recorded, account: Account) -> str:
    """Return the sentence of a run's machine, processes, time, energy and bill."""
    machine = recorded.booking.get("machine")
    place = f"On {machine}, a" if machine else "A"
    nodes = f"{account.num_nodes} node{'s' if account.num_nodes != 1 else ''}"
    processes = f"{account.num_ranks} process{'es' if account.num_ranks != 1 else ''}"
    text = f"{place} training with {processes} on {nodes} took {duration(account.seconds)}"
    if account.num_devices:
        text += f" and {amount(account.device_hours)} GPU hours on {account.num_devices} devices"
    if account.energy_joules is not None:
        text += f", and {amount(account.energy_joules / JOULES_PER_KWH)} kWh of energy in them"
    if account.billed is not None:
        text += f", billed as {cost(account.billed, account.billed_unit)}"
    return text + "."


def _shares(training: Training) -> str:
    """Say what the steps' time was spent with; what was not measured is not told."""
    told = [f"{training.share(part):.0%} {what}" for part, what in _WAITS.items() if part in training.parts]
    computing = f"{1 - training.share(*_WAITS):.0%} of the training steps' time was computing"
    return ", ".join([computing, *told]) + "."
