"""kg CO2 and the price in a report: what was measured, times what the machine's rows say, with their sources."""

import json
import os
from pathlib import Path

from tests import warm

from .test_report import Generated


def test_report_tells_costs(tmp_path: Path) -> None:
    """A machine's rows that name grid and price give a line for each, with source and date; without them none."""
    rows = 'source = "a page"\ndate = 2026-11-30\n'
    (tmp_path / "mine.toml").write_text(
        f'name = "mine"\ntitle = "Mine"\n{rows}'
        f'[[node_type]]\nname = "big"\nchip = "A100"\nvendor = "nvidia"\n{rows}'
        f'[[partition]]\nname = "gpu"\nnode_type = "big"\n{rows}'
        f'[[billing]]\npartitions = ["gpu"]\nunit = "GPU-hours"\nper_node_hour = 4\nprice_per_unit = 0.25\n'
        f'currency = "EUR"\n{rows}'
        f'[[grid]]\nregion = "Utopia"\nyear = 2025\ngrams_co2_per_kwh = 100\n{rows}'
    )
    run = Generated(tmp_path / "run")
    booking = {"machine": "mine", "partition": "gpu", "billed": 8.0, "billed_unit": "GPU-hours", "minutes": 60}
    run.write("booking.json", booking)
    load = {"n": [{"device": 0, "mean": 50.0, "most": 90, "looks": 360, "energy_joules": 7.2e6}]}
    run.write("report.json", {"format": 1, "exit_code": 0, "load": load})
    run.event("supervisor", node="n")
    run.event("end", 1800.0, exit_code=0)
    environ = {**os.environ, "ECHELON_MACHINES": str(tmp_path / "mine.toml")}
    done = warm.run(["-m", "echelon", "report", "run"], cwd=tmp_path, environ=environ)
    energy = "0.2 kg CO2 for the energy of its devices: 100 g/kWh, the mean of Utopia in 2025"
    price = "1.00 EUR: 0.25 EUR for each of its GPU-hours"
    assert f"\ncosts     {energy} (a page; 2026-11-30)\n          {price} (a page; 2026-11-30)\n" in done.stdout
    told = json.loads(warm.run(["-m", "echelon", "report", "--json", "run"], cwd=tmp_path, environ=environ).stdout)
    assert (told["runs"][0]["costs"]["kg_co2"], told["runs"][0]["costs"]["price"]) == (0.2, 1.0)
    run.write("booking.json", {**booking, "machine": "another"})
    assert "costs" not in warm.run(["-m", "echelon", "report", "run"], cwd=tmp_path, environ=environ).stdout
