"""Count the power of a package once, though each of its devices may show it."""

from typing import Dict, Mapping, Sequence

from ..nouns import Device
from .reading import Reading


class Packages:
    """The devices by package: the first one that shows power or energy shows that of the package, the others none.

    The value is that of the whole package, also if another job uses its other device.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._package_of = {device.number: device.chip for device in devices}
        self._owner_of: Dict[int, int] = {}

    def count_once(self, readings: Mapping[int, Reading]) -> Dict[int, Reading]:
        """Return the readings, without the power and the energy that another device shows already."""
        counted = {}
        for number in sorted(readings):
            reading, package = readings[number], self._package_of.get(number, number)
            if reading.power_watts is not None or reading.energy_count is not None:
                owner = self._owner_of.setdefault(package, number)
                if owner != number:
                    reading = reading._replace(power_watts=None, energy_count=None)
            counted[number] = reading
        return counted
