"""What a run cost: kg of CO2 and a price, where the rows of its machine name the grid and the price of a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.machines import load
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.units import rate

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What is known of the costs of a run, and the sentences that say it with their sources."""

    kg_co2: float | None = None
    """Of the energy that its devices told."""
    price: float | None = None
    currency: str = ""
    sentences: tuple[str, ...] = ()


def of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> Costs:
    """Multiply what was measured with what the machine's rows say; nothing without them."""
    name = str(recorded.booking.get("machine") or recorded.plan.get("machine") or "")
    if not name:
        return Costs()
    try:
        machine = load.find(name, environ)
    except UsageError:
        return Costs()  # its file is gone or broken: `echelon machines` says so
    kg_co2, price, currency, sentences = None, None, "", []
    grid = max(machine.grids, key=lambda row: row.year, default=None)
    if account.energy_joules is not None and grid is not None:
        kg_co2 = account.energy_joules / JOULES_PER_KWH * grid.grams_co2_per_kwh / 1000
        shown = rate(kg_co2) if kg_co2 >= 1 else f"{kg_co2:.2g}"
        sentences.append(
            f"{shown} kg CO2 for the energy of its devices: {grid.grams_co2_per_kwh:g} g/kWh, the mean of "
            f"{grid.region} in {grid.year} ({grid.source}; {grid.seen})"
        )
    rows = [row for row in machine.billing if recorded.booking.get("partition") in row.partitions]
    for row in [row for row in rows if row.price_per_unit is not None and account.billed is not None][:1]:
        price, currency = (account.billed or 0.0) * (row.price_per_unit or 0.0), row.currency
        tariff = f"{row.price_per_unit:g} {currency} for each of its {row.unit}"
        sentences.append(f"{price:,.2f} {currency}: {tariff} ({row.source}; {row.seen})")
    return Costs(kg_co2=kg_co2, price=price, currency=currency, sentences=tuple(sentences))
