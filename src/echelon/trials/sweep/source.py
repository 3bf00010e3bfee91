"""Where the values of the next trial come from: a list, or Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from echelon.errors import UsageError
from echelon.trials.sweep.space import SweptParameter
from echelon.trials.sweep.trial import ENDED, STOPPED, WAITING, SweepTrial


class ListedTrials:
    """Trials that are known from the begin."""

    def __init__(self, trials: Sequence[SweepTrial]) -> None:
        self.num_trials = len(trials)
        self._trials = trials

    def trial(self, number: int) -> SweepTrial:
        return self._trials[number]

    def tell(self, trial: SweepTrial) -> None:
        """Hear of a trial that has a result."""


class OptunaTrials(ListedTrials):
    """Trials that Optuna chooses by the results that it hears; those of an interrupted sweep come first."""

    def __init__(
        self, earlier: Sequence[SweepTrial], parameters: Sequence[SweptParameter], *, number: int, seed: int, sign: int
    ) -> None:
        super().__init__(earlier)
        if find_spec("optuna") is None:
            raise UsageError(
                "--sampler optuna needs Optuna, which is not installed here",
                hint="pip install optuna   or --sampler random",
            )
        self._optuna: Any = import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self.num_trials, self._parameters, self._asked = number, parameters, dict[int, Any]()
        self._study = self._optuna.create_study(
            direction="minimize" if sign > 0 else "maximize", sampler=self._optuna.samplers.TPESampler(seed=seed)
        )

    def trial(self, number: int) -> SweepTrial:
        earlier = self._trials[number] if number < len(self._trials) else None
        if earlier is not None:
            self._study.enqueue_trial(earlier.points)
        asked = self._asked[number] = self._study.ask({each.name: self._range(each) for each in self._parameters})
        if earlier is None:
            points = dict(asked.params)
            ways = [(each.name, each.value if each.num_values else each.between) for each in self._parameters]
            return SweepTrial(number=number, values={name: way(points[name]) for name, way in ways}, points=points)
        if earlier.state != WAITING:
            self.tell(earlier)
        return earlier

    def tell(self, trial: SweepTrial) -> None:
        states, asked = self._optuna.trial.TrialState, self._asked[trial.number]
        if trial.state == ENDED and trial.number_told is not None:
            self._study.tell(asked, trial.number_told)
        else:
            self._study.tell(asked, state=states.PRUNED if trial.state == STOPPED else states.FAIL)

    def _range(self, parameter: SweptParameter) -> Any:
        """Return what Optuna draws from: the place of a value, or a share of the way from low to high."""
        spaces, number = self._optuna.distributions, parameter.num_values
        if parameter.texts:
            return spaces.CategoricalDistribution(range(number))
        return spaces.IntDistribution(0, number - 1) if number else spaces.FloatDistribution(0.0, 1.0)
