"""A plan: model, solver, mechanism and report of a fit, before a row is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skdpbayes.facts import Facts
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.plans.registry import planned
from skdpbayes.plans.report import Told, report
from skdpbayes.plans.settings import Settings, Task
from skdpbayes.privacy.report import PrivacySpent


@dataclass(frozen=True, eq=False)
class Plan:
    """What a fit runs and what it costs: a function of parameters and public facts.

    Attributes
    ----------
    facts : Facts
        Shape of the table, and what parameters declare of it.
    model : Model
    solver : Solver
    spec : MechanismSpec
        What the mechanism does.
    report : PrivacySpent
        What the fit spends, as its `privacy_spent_` will say.
    slots : int or None
        Batch slots processed at a time, of models whose records are costly.

    Examples
    --------
    >>> from skdpbayes import DPBetaBernoulli
    >>> plan = DPBetaBernoulli(epsilon=1.0).plan(n_rows=5000, n_features=3)
    >>> plan.epsilon <= 1.0 and plan.guarantee_holds
    True
    >>> plan.n_steps, plan.sampling_rate
    (1, 1.0)
    """

    facts: Facts
    model: Any
    solver: Any  # of the kind that takes the model
    spec: MechanismSpec
    report: PrivacySpent
    slots: int | None = None

    @property
    def epsilon(self) -> float:
        """What the fit spends at `delta`."""
        return self.report.epsilon

    @property
    def delta(self) -> float:
        """Privacy failure probability."""
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
        """Rounds of each chain."""
        return self.spec.n_steps

    @property
    def sampling_rate(self) -> float:
        """Probability with which a record enters a batch."""
        return self.spec.sampling_rate

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Standard deviation of the noise over the clipping norm, in each piece of the schedule."""
        return tuple(piece.noise_multiplier for piece in self.spec.steps)

    def __repr__(self) -> str:
        rows = "" if self.facts.n_rows is None else f" of {self.facts.n_rows} {self.report.unit}s"
        return (
            f"Plan({self.report.estimator}: {self.n_steps} rounds at sampling rate "
            f"{self.sampling_rate:.4g}{rows}; {self.report})"
        )


def make_plan(
    settings: Settings,
    facts: Facts,
    task: Task,
    told: Told,
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
    costly : bool
        Whether empty batch slots cost much: then programs differ with the size of the batch.

    Raises
    ------
    ValueError
        For settings that make no sense together, or that the model does not take.
    """
    solver, spec, norm = planned(settings, task.model, task.bounds, facts.n_rows)
    slots = None
    if settings.adjacency != "add_remove" and facts.n_rows is not None:
        spec.check_records(facts.n_rows)
        if costly:
            batch = 1.2 * spec.sampling_rate * facts.n_rows
            slots = next((slots for slots in (64, 128, 256) if slots >= batch), None)
    return Plan(facts, task.model, solver, spec, report(settings, spec, norm, told), slots)
