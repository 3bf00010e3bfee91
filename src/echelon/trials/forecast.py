"""What measured sizes say of more devices: a table, how many devices are worth it, and a report for an application."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from echelon import __version__
from echelon.estimate.speed.runs import STRONG, Interval, PredictedSize, Refusal, SizeRun, Worth
from echelon.estimate.speed.throughput import StepTimeLaw
from echelon.trials import plot, scaling_report
from echelon.trials.measured_sizes import MeasuredSizes
from echelon.units import aligned, counted, rate, step_time

FACTORS = (2, 4, 8, 16)  # the estimated sizes, as multiples of the largest measured one
SHARES = (0.9, 0.7, 0.5)  # the parallel efficiencies for which the devices are told
NODES_UNKNOWN = (
    "how many devices a node has is not known: sizes that need more nodes than were measured may be slower (--machine "
    "tells it)"
)
HEAD = ("ranks", "", "a step", "samples/s", "speedup", "efficiency", "range")


class Forecast:
    """The measured sizes, those that are estimated from them, and why others are not."""

    def __init__(self, measured: MeasuredSizes, model: StepTimeLaw) -> None:
        self.measured = measured
        self.model = model
        answers = [model.at(factor * model.larger.num_devices) for factor in FACTORS]
        self.sizes = tuple(answer for answer in answers if isinstance(answer, PredictedSize))
        self.refusal = next((answer for answer in answers if isinstance(answer, Refusal)), None)
        """Why the larger of the sizes are not estimated; None: all are."""
        self.worths = tuple(model.worth(share) for share in SHARES)

    @property
    def title(self) -> str:
        """Say in a few words what is estimated."""
        batch = "same global batch" if self.model.mode == STRONG else "same batch for each device"
        return f"{self.measured.command or 'a training'}, {self.model.mode} scaling ({batch})"

    def as_data(self) -> dict[str, Any]:
        return {
            "mode": self.model.mode,
            "spread": self.model.spread,
            "measured": [
                {
                    "ranks": run.num_devices,
                    "nodes": self.measured.num_nodes.get(run.num_devices, 0),
                    "step_seconds": run.step_seconds,
                    "samples_per_second": _samples(run),
                    "speedup": speedup,
                    "efficiency": share,
                }
                for run, speedup, share in self._measured()
            ],
            "estimated": [asdict(size) for size in self.sizes],
            "not_estimated": asdict(self.refusal) if self.refusal is not None else None,
            "worth": [asdict(worth) for worth in self.worths],
            "report": self.report(),
        }

    def draw(self, files: tuple[str, ...]) -> None:
        """Draw measured and estimated sizes as SVG and PNG."""
        measured = [
            plot.Point(num_ranks=run.num_devices, speedup=Interval.exact(speedup), efficiency=Interval.exact(share))
            for run, speedup, share in self._measured()
        ]
        estimated = [
            plot.Point(num_ranks=size.num_devices, speedup=size.speedup, efficiency=size.efficiency)
            for size in self.sizes
        ]
        plot.draw_points(self.title, measured, estimated, files)

    def text(self) -> str:
        lines = [self.title, *self._table(), ""]
        lines.append(
            f"relative to {counted(self.model.base.num_devices, 'rank')}; the measured times may be wrong by "
            f"{self.model.spread:.1%}, and communication may grow: the range has both"
        )
        if self.model.larger.ranks_per_node is None:
            lines.append(NODES_UNKNOWN)
        if self.refusal is not None:
            lines.append(f"not estimated: {self.refusal.reason} (way out: {self.refusal.repair})")
        lines += ["", *map(self._worth, self.worths)]
        return "\n".join([*lines, "", "To paste into an application for computing time:", "", self.report()]) + "\n"

    def report(self) -> str:
        """Return the report that computing centres ask for: command, machine, sizes, speedup, efficiency."""
        sizes = "; ".join(
            scaling_report.of_size(
                run.num_devices,
                num_nodes=self.measured.num_nodes.get(run.num_devices, 0),
                step_seconds=run.step_seconds,
                samples_per_second=_samples(run),
                speedup=speedup,
                efficiency=share,
            )
            for run, speedup, share in self._measured()
        )
        machine = f" on {self.measured.machine}" if self.measured.machine else ""
        sentences = [
            f"We measured {self.title}{machine} (echelon {__version__}). {sizes[0].upper()}{sizes[1:]}. Speedup and "
            f"efficiency are relative to {counted(self.model.base.num_devices, 'rank')}.",
            self._estimated(),
            *self.measured.used,
        ]
        return " ".join(sentence for sentence in sentences if sentence)

    def _estimated(self) -> str:
        if not self.sizes:
            return ""
        parts = [
            f"{counted(size.num_devices, 'rank')}: {step_time(size.step_seconds.value)} a step, speedup "
            f"{size.speedup.value:.2f}, efficiency {size.efficiency.value:.0%} ({size.efficiency.least:.0%} to "
            f"{size.efficiency.most:.0%})"
            for size in self.sizes
        ]
        return f"Estimated from these, not measured: {'; '.join(parts)}."

    def _measured(self) -> list[tuple[SizeRun, float, float]]:
        """Return each measured size with its speedup and efficiency, from the smallest to the largest."""
        base, rows = self.model.base, []
        for run in sorted(self.measured.runs, key=lambda each: each.num_devices):
            factor = run.num_devices / base.num_devices
            speedup = base.step_seconds / run.step_seconds * (1.0 if self.model.mode == STRONG else factor)
            rows.append((run, speedup, speedup / factor))
        return rows

    def _table(self) -> list[str]:
        rows = [HEAD]
        for run, speedup, share in self._measured():
            samples = _samples(run)
            cells = (step_time(run.step_seconds), rate(samples) if samples else "–", f"{speedup:.2f}", f"{share:.0%}")
            rows.append((str(run.num_devices), "measured", *cells, "–"))
        for size in self.sizes:
            samples = size.samples_per_second.value if size.samples_per_second is not None else None
            cells = (
                step_time(size.step_seconds.value),
                rate(samples) if samples else "–",
                f"{size.speedup.value:.2f}",
                f"{size.efficiency.value:.0%}",
            )
            span = f"{size.efficiency.least:.0%} to {size.efficiency.most:.0%}"
            rows.append((str(size.num_devices), "estimated", *cells, span))
        return aligned(rows, to_right=True)

    def _worth(self, worth: Worth) -> str:
        head = f"above {worth.efficiency:.0%}"
        if not worth.probably:
            return f"{head}  not even the {counted(self.model.larger.num_devices, 'rank')} that were measured"
        more = ", and perhaps more" if worth.is_limit else ""
        surely = f"surely up to {worth.surely}, " if 0 < worth.surely < worth.probably else ""
        return f"{head}  {surely}probably up to {counted(worth.probably, 'rank')}{more}"


def _samples(run: SizeRun) -> float | None:
    return run.global_batch / run.step_seconds if run.global_batch is not None else None
