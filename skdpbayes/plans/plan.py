"""A plan: model, solver, mechanism and report of a fit, before a row is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from skdpbayes.facts import Facts
from skdpbayes.inference import run
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.private_sum import slots_of_a_batch
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models.base import BoundedStatistic, StatisticsModel
from skdpbayes.models.protocols import HasSamplingRate
from skdpbayes.models.score_unit import WithScoreUnit
from skdpbayes.plans.registry import planned
from skdpbayes.plans.report import Told, report
from skdpbayes.plans.settings import Settings, Task
from skdpbayes.privacy.report import PrivacySpent

_TRIED = 40  # number of rounds of a trial run

# Seconds of a round, of a record, and of one of its numbers (`Plan.rough_seconds`): fits of the
# examples in docstrings on two cores. Programs take long for a record, E-steps for its numbers.
_ROUND, _RECORD, _NUMBER = 1e-4, 5e-8, 2e-9
_OF_PROGRAMS, _OF_E_STEPS = 2e-6, 5e-8


@dataclass(frozen=True, eq=False)
class Plan:
    """Plan of a fit: what it runs and what it costs, from parameters and public facts alone.

    Attributes
    ----------
    facts : Facts
        Shape of the table, and what is declared of it.
    model : Model
    solver : Solver
    spec : MechanismSpec
        Specification of the mechanism.
    report : PrivacySpent
        Cost of the fit, its `privacy_spent_`.
    solver_name : str
        The estimator's `solver`, or what it chose where that is "auto".
    slots : int or None
        Number of batch slots processed at a time, for models whose records are costly.
    made_up : callable ``n_rows -> Records``
        Synthetic records, for `expected_seconds`.
    hints : tuple of str
        Why the fit will hardly learn anything, as far as public facts tell.

    Examples
    --------
    >>> from skdpbayes import DPBetaBernoulli
    >>> plan = DPBetaBernoulli(epsilon=1.0).plan(n_rows=5000, n_features=3)
    >>> plan.epsilon <= 1.0 and plan.guarantee_holds
    True
    >>> plan.solver_name, plan.n_steps, plan.sampling_rate
    ('vips', 1, 1.0)
    """

    facts: Facts
    model: Any
    solver: Any  # of the kind that takes the model
    spec: MechanismSpec
    report: PrivacySpent
    solver_name: str
    slots: int | None
    made_up: Callable[[int], Records]
    hints: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """Epsilon that the fit spends at `delta`."""
        return self.report.epsilon

    @property
    def delta(self) -> float:
        """Probability with which the privacy bound may fail."""
        return self.report.delta

    @property
    def guarantee_holds(self) -> bool:
        """Whether nothing voids the guarantee."""
        return self.report.guarantee_holds

    @property
    def voided_by(self) -> tuple[str, ...]:
        """Reasons for which the guarantee does not hold."""
        return self.report.voided_by

    @property
    def n_steps(self) -> int:
        """Number of rounds of each chain."""
        return self.spec.n_steps

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.spec.sampling_rate

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Standard deviation of the noise over the clipping norm, by piece of the schedule."""
        return tuple(piece.noise_multiplier for piece in self.spec.steps)

    def expected_seconds(self, n_rows: int | None = None) -> float:
        """Seconds that the rounds of a fit take on this machine, without compilation.

        A few rounds run on synthetic rows. This compiles the program, which the fit then reuses. If
        the time depends on the rows (lengths of documents, sparsity), the result is a rough guess.

        Parameters
        ----------
        n_rows : int, default=None
            Number of rows; needed if the plan does not know it.

        Raises
        ------
        ValueError
            If the number of rows is not known.
        """
        n = self.facts.n_rows if n_rows is None else n_rows
        if n is None:
            raise ValueError("n_rows is needed: under adjacency='add_remove' the plan has none.")
        records = replace(self.made_up(n), slots=self.slots)
        first = self.spec.steps[0]
        kinds = min(_TRIED, self.n_steps)
        brief = replace(self.spec, steps=(replace(first, steps=kinds),), n_chains=1)

        def seconds() -> float:
            start = time.perf_counter()
            how = (fit_keys(None), self.model, self.solver, brief, records)
            run(*how, part_of=self.n_steps)
            return time.perf_counter() - start

        seconds()  # compiles
        return min(seconds() for _ in range(2)) * self.n_steps / kinds * self.spec.n_chains

    def rough_seconds(self) -> float | None:
        """Rough guess of the seconds that the rounds take, by arithmetic alone.

        It may be off by a factor of ten either way; `expected_seconds` measures. None if the plan
        does not know the number of rows.
        """
        n = self.facts.n_rows
        if n is None:
            return None
        model, record, number = self.model, _RECORD, _NUMBER
        if isinstance(model, BoundedStatistic):
            size = model.n_statistics
        else:
            size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init)))
        if isinstance(model, WithScoreUnit):
            record = _OF_PROGRAMS
        elif isinstance(model, StatisticsModel):
            number = _OF_E_STEPS
        a_round = _ROUND + self.sampling_rate * n * (record + size * number)
        return self.spec.n_chains * self.n_steps * a_round

    def __repr__(self) -> str:
        rows = "" if self.facts.n_rows is None else f" of {self.facts.n_rows} {self.report.unit}s"
        return (
            f"Plan({self.report.estimator} by {self.solver_name!r}: {self.n_steps} rounds at "
            f"sampling rate {self.sampling_rate:.4g}{rows}; {self.report})"
        )


def make_plan(
    settings: Settings,
    facts: Facts,
    task: Task,
    told: Told,
    made_up: Callable[[int], Records],
    *,
    costly: bool = False,
) -> Plan:
    """Plan of a fit.

    Parameters
    ----------
    settings : Settings
    facts : Facts
    task : Task
    told : Told
    made_up : callable
        As in `Plan`.
    costly : bool
        Whether empty batch slots are expensive; then the program depends on the batch size.

    Raises
    ------
    ValueError
        For settings that contradict each other or do not suit the model.
    """
    model = task.model
    solver, spec, norm, together = planned(settings, model, task.bounds, facts.n_rows)
    if isinstance(model, HasSamplingRate):
        model = model.at_rate(spec.sampling_rate)
    if norm is not None:
        norm = settings.longest(norm, together)
    slots = None
    if facts.n_rows is not None:
        spec = replace(spec, n_records=facts.n_rows)
        if costly:
            slots = slots_of_a_batch(spec.sampling_rate, facts.n_rows)
    cost = report(settings, spec, norm, told)
    return Plan(facts, model, solver, spec, cost, settings.solver, slots, made_up)
