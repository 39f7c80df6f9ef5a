"""Parameters that determine a plan, and the noise that they allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from skdpbayes.privacy.accounting import Calibration, GaussianSteps, calibrate_noise
from skdpbayes.privacy.accounting._gaussian import gaussian_mu

if TYPE_CHECKING:
    from skdpbayes.mechanism.spec import MechanismSpec, Together

SEEDED = (
    "random_state is set: other fits may share the noise, and whoever guesses the seed can remove "
    "it"
)
BEYOND_TABLES = "epsilon is too large or too small for the finite tables of the noise"
LEAST_ACCOUNTED = 0.05  # least noise multiplier to account for if epsilon is infinite
_COUNT_SHARE = 0.01  # share of the squared budget for the number of usable records

Schedule = Sequence[tuple[float, int]]
"""Pieces of a noise schedule: relative noise multiplier and number of steps."""


class Bounds(NamedTuple):
    """Public bounds on one record's log-likelihood; infinite if there is no bound.

    Attributes
    ----------
    score, curvature : float
        Bounds on the norms of the gradient and of the Hessian.
    prior_precision : float
        Precision of the prior.
    typical : tuple of float or None
        Norms of gradient and Hessian of a typical record.
    clip : float or None
        Clipping norm; None leaves it to the solver.
    mean_curvature : float or None
        Bound on the average curvature of all records, as far as declared norms are typical; None:
        `curvature`.
    longer : float
        Clipping norm of scores that a release finds, over that where noise is large.
    """

    score: float = math.inf
    curvature: float = math.inf
    prior_precision: float = 1.0
    typical: tuple[float, float] | None = None
    clip: float | None = None
    mean_curvature: float | None = None
    longer: float = 1.0


class Task(NamedTuple):
    """A model, public bounds of its records, and reasons that void the guarantee.

    `costly`: whether empty slots of a batch are expensive. `solver`: what "auto" stands for, where
    that depends on the model.
    """

    model: Any
    bounds: Bounds
    voided_by: tuple[str, ...] = ()
    costly: bool = False
    solver: str | None = None


class Planned(NamedTuple):
    """A solver, its mechanism, and its clipping norm of a row (None if it follows from releases).

    `together` says what the norm is of: of scores, or of sums of statistics.
    """

    solver: Any  # of the kind that takes the model
    spec: MechanismSpec
    clipping_norm: float | None
    together: Together


PlanFunction = Callable[..., Planned]
"""A function of settings, a model, bounds and the public number of records."""

_OF_ROUNDS = (
    *("sampling_rate", "n_steps", "clipping_norm", "learning_rate"),
    *("guide", "step_schedule", "n_chains"),
)


@dataclass(frozen=True)
class Defaults:
    """Defaults of an estimator, where they differ from those of the solvers.

    Attributes
    ----------
    schedules : mapping of str to tuple of int
        Number of rounds and expected batch size, by solver.
    rounds : tuple of int
        Number of rounds of statistics, with noise and without.
    solver_rounds : mapping of str to tuple of int
        The same for solvers that need another number.
    opening_shares : tuple of float
        Budget shares of the openings, the releases that find starting values.
    solver_shares : mapping of str to tuple of float
        The same for solvers that need others.
    opening_words : str
        Subject and verb of the error about too few steps; ``{}`` stands for the number of openings.
    curvature_every : int
        Number of rounds of na-dpvi between two releases of curvature.
    full_rank_up_to, curvature_up_to : int
        Largest number of parameters for which ``guide="auto"`` is full rank, and for which a matrix
        is released.
    learning_rates : tuple of float
        Learning rates of dpvi, full rank and mean field.
    learning_rate : float
        Learning rate of Adam.
    calm, fast : float
        Of a full-rank guide: the most records per parameter that its learning rate assumes, and the
        fraction of the run after which its steps get shorter.
    limited : bool
        Whether the number of records limits dpvi's learning rate, as it must in linear models.
    """

    schedules: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rounds: tuple[int, int] = (1, 1)
    solver_rounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    opening_shares: tuple[float, ...] = ()
    solver_shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    opening_words: str = "{} go"
    curvature_every: int = 10
    full_rank_up_to: int = 300
    curvature_up_to: int = 1000
    learning_rates: tuple[float, float] = (0.2, 0.2)
    learning_rate: float = 0.1
    calm: float = math.inf
    fast: float = 0.2
    limited: bool = True


@dataclass(frozen=True)
class Settings:
    """Checked parameters of an estimator, as far as its plan depends on them.

    Attributes
    ----------
    epsilon, delta, adjacency, numerics, solver
    n_posterior_samples, sampling_rate, n_steps, clipping_norm, learning_rate
    guide, step_schedule, n_chains, sampler, friction, max_rows_per_person
        As in `DPBayesianLogisticRegression`; defaults replace the parameters that an estimator
        lacks.
    defaults : Defaults
    """

    epsilon: float
    delta: float
    adjacency: str
    numerics: str
    solver: str = "vips"
    n_posterior_samples: int = 1
    sampling_rate: float | None = None
    n_steps: int | None = None
    clipping_norm: float | None = None
    learning_rate: float | None = None
    guide: Any = "auto"
    step_schedule: str = "constant"
    n_chains: int = 1
    sampler: str = "sgld"
    friction: float = 1.0
    max_rows_per_person: int | None = None
    defaults: Defaults = field(default_factory=Defaults)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], defaults: Defaults) -> Settings:
        """Settings from an estimator's parameters; others are ignored."""
        known = {own.name for own in fields(cls)}
        own = {name: value for name, value in parameters.items() if name in known}
        return cls(**own, defaults=defaults)

    @property
    def private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a record."""
        return self.max_rows_per_person or 1

    @property
    def asks_for_rounds(self) -> bool:
        """Whether a parameter is given that rounds of scores alone have."""
        return any(
            getattr(self, own.name) != own.default for own in fields(self) if own.name in _OF_ROUNDS
        )

    def longest(self, norm: float, together: Together = "score") -> float:
        """Clipping norm of a record, given that of a row (`skdpbayes.mechanism.persons`)."""
        from skdpbayes.mechanism.spec import growth

        return norm * self.most_rows ** growth(together, self.private)

    def rate(self, n_records: int | None, expected_batch: int) -> float:
        """`sampling_rate`, or the rate at which `expected_batch` records are expected.

        `n_records` is None if it is not public, here and in all plans.
        """
        if self.sampling_rate is not None:
            return float(self.sampling_rate)
        if n_records is None:
            raise ValueError(
                "sampling_rate=None takes the number of records from X, but under "
                "adjacency='add_remove' that number is not public. Pass sampling_rate (expected "
                "batch size over a public guess of the number of records), or use "
                "adjacency='zero_out' if the number of records may be known."
            )
        return min(1.0, expected_batch / n_records)

    def schedule(self, own: tuple[int, int], openings: Sequence[float]) -> tuple[int, int]:
        """Number of rounds and expected batch size; `n_steps` includes the openings."""
        rounds, batch = self.defaults.schedules.get(self.solver, own)
        return (rounds if self.n_steps is None else self.n_steps - len(openings)), batch

    def count(self) -> GaussianSteps:
        """Release of the number of usable records, at a small share of the budget."""
        if not self.private:
            return GaussianSteps(0.0, 1.0, 1)
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        mu = gaussian_mu(float(self.epsilon), float(self.delta))
        return GaussianSteps(distance / (_COUNT_SHARE**0.5 * mu), 1.0, 1)

    def least_noise(self) -> float:
        """Noise multiplier of one release of all records that spends the whole budget."""
        if not self.private:
            return 0.0
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        return distance / gaussian_mu(float(self.epsilon), float(self.delta))

    def noise(
        self, n_steps: int, sampling_rate: float, schedule: Schedule | None = None
    ) -> Calibration:
        """Steps that are (epsilon, delta)-private together with the count."""
        return calibrate_noise(
            float(self.epsilon),
            float(self.delta),
            sampling_rate,
            n_steps,
            schedule,
            self.adjacency,
            along=(self.count(),),
        )

    def round_noise(
        self,
        openings: Sequence[float],
        n_steps: int,
        sampling_rate: float,
        schedule: Schedule | None = None,
        closings: Sequence[float] = (),
    ) -> tuple[tuple[GaussianSteps, ...], tuple[GaussianSteps, ...], float]:
        """Steps of the openings, steps of the rounds, and the noise multiplier of `schedule`.

        Parameters
        ----------
        openings, closings : sequence of float
            Budget shares of single releases before and after the rounds, which have the rest.
        """
        if not openings and not closings:
            noise = self.noise(n_steps, sampling_rate, schedule)
            return (), noise.steps, noise.noise_multiplier
        rounds = schedule or [(1.0, n_steps)]
        spent = sum(count / size**2 for size, count in rounds)
        factor = (spent / (1 - sum(openings) - sum(closings))) ** 0.5
        whole = [(share**-0.5, 1) for share in openings]
        whole += [(factor * size, count) for size, count in rounds]
        whole += [(share**-0.5, 1) for share in closings]
        noise = self.noise(n_steps + len(openings) + len(closings), sampling_rate, whole)
        n = len(openings)
        return noise.steps[:n], noise.steps[n:], factor * noise.noise_multiplier

    def spec(self, steps: tuple[GaussianSteps, ...], n_chains: int = 1) -> MechanismSpec:
        """Specification of the mechanism."""
        from skdpbayes.mechanism.spec import MechanismSpec

        spec = MechanismSpec(steps, n_chains, self.numerics, most_rows=self.most_rows)
        if not self.private and spec.least_noise >= LEAST_ACCOUNTED:
            # A sampler's noise has a finite epsilon, which an exact count would void.
            return spec
        return replace(spec, count=self.count())

    def refuse(self, *names: str) -> None:
        """Raise a `ValueError` if a parameter is set that releases of statistics do not take."""
        for name in names:
            value = vars(self)[name]
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} needs another solver: solver='vips' releases "
                    "bounded statistics of all records."
                )

    def refuse_private_n(self) -> None:
        """Raise a `ValueError` if the number of records is private."""
        if self.adjacency == "add_remove":
            raise ValueError(
                "solver='vips' takes the number of records as known, which adjacency='add_remove' "
                "keeps private. Use adjacency='zero_out' if it may be known, or another solver, "
                "with a sampling_rate."
            )
