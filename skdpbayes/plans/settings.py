"""Parameters that decide what a fit runs, and the noise that they allow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from skdpbayes.privacy.accounting import Calibration, GaussianSteps, calibrate_noise
from skdpbayes.privacy.accounting._gaussian import gaussian_mu

if TYPE_CHECKING:
    from skdpbayes.mechanism.spec import MechanismSpec

SEEDED = (
    "random_state is set: other fits may share the noise, and whoever guesses the seed can remove "
    "it"
)
LEAST_ACCOUNTED = 0.05  # least noise multiplier that is accounted for if epsilon is infinite
_COUNT_SHARE = 0.01  # of the squared budget, for the number of usable records

Schedule = Sequence[tuple[float, int]]
"""Pieces of a noise schedule: a multiplier relative to the others', and a number of steps."""


class Bounds(NamedTuple):
    """Public bounds on what one record may do to the log-likelihood; infinite where there is none.

    Attributes
    ----------
    score, curvature : float
        Norms of the gradient and of the Hessian.
    prior_precision : float
    typical : tuple of float or None
        Norms of gradient and Hessian of a usual record.
    clip : float or None
        Clipping norm to take; None leaves it to the solver.
    mean_curvature : float or None
        Of all records, over their number; None: no more than `curvature`.
    constant_column : bool
        Whether the last column of a record is constant.
    """

    score: float = math.inf
    curvature: float = math.inf
    prior_precision: float = 1.0
    typical: tuple[float, float] | None = None
    clip: float | None = None
    mean_curvature: float | None = None
    constant_column: bool = False


class Task(NamedTuple):
    """A model, public bounds on what its records do, and what voids the guarantee beside the facts."""

    model: Any
    bounds: Bounds
    voided_by: tuple[str, ...] = ()


class Planned(NamedTuple):
    """A solver, its mechanism, and its clipping norm (None, if that follows from releases)."""

    solver: Any  # of the kind that takes the model
    spec: MechanismSpec
    clipping_norm: float | None


@dataclass(frozen=True)
class Defaults:
    """What an estimator's model asks of the solvers' defaults.

    Attributes
    ----------
    schedules : mapping of str to tuple of int
        Rounds and expected batch of a solver, where they differ from the solver's own.
    rounds : tuple of int
        Rounds of statistics, with noise and without.
    opening_shares : tuple of float
        Budget shares of the releases that find a start.
    opening_words : str
        Subject and verb of the error that there are too few steps, the number for ``{}``.
    curvature_every : int
        Rounds of na-dpvi between two releases of curvature.
    full_rank_up_to, curvature_up_to : int
        Most parameters of ``guide="auto"`` that is full rank, and of releases of a matrix.
    learning_rates : tuple of float
        Of dpvi, full rank and mean field.
    learning_rate : float
        Of Adam.
    calm : int or None
        Records for each parameter, as far as the learning rate of a full-rank guide goes.
    limited : bool
        Whether the number of records limits dpvi's learning rate, as it must for linear models.
    """

    schedules: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rounds: tuple[int, int] = (1, 1)
    opening_shares: tuple[float, ...] = ()
    opening_words: str = "{} go"
    curvature_every: int = 10
    full_rank_up_to: int = 300
    curvature_up_to: int = 1000
    learning_rates: tuple[float, float] = (0.4, 0.2)
    learning_rate: float = 0.1
    calm: int | None = None
    limited: bool = True


@dataclass(frozen=True)
class Settings:
    """An estimator's parameters, checked, as far as its plan depends on them.

    Attributes
    ----------
    epsilon, delta, adjacency, numerics, solver
    n_posterior_samples, sampling_rate, n_steps, clipping_norm, learning_rate
    guide, step_schedule, n_chains, sampler, friction
        As in `DPBayesianLogisticRegression`; parameters that an estimator lacks have defaults.
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
    defaults: Defaults = field(default_factory=Defaults)

    @classmethod
    def of(cls, parameters: Mapping[str, Any], defaults: Defaults) -> Settings:
        """Settings among an estimator's parameters."""
        known = {own.name for own in fields(cls)}
        own = {name: value for name, value in parameters.items() if name in known}
        return cls(**own, defaults=defaults)

    @property
    def private(self) -> bool:
        """Whether noise is asked for."""
        return math.isfinite(self.epsilon)

    def rate(self, n_records: int | None, expected_batch: int) -> float:
        """The sampling rate asked for, or one that samples `expected_batch` records where N is public."""
        if self.sampling_rate is not None:
            return float(self.sampling_rate)
        if self.adjacency == "add_remove" or n_records is None:
            raise ValueError(
                "sampling_rate=None takes the number of records from X, but under "
                "adjacency='add_remove' that number is not public. Pass sampling_rate (expected "
                "batch size over a public guess of the number of records), or use "
                "adjacency='zero_out' if the number of records may be known."
            )
        return min(1.0, expected_batch / n_records)

    def schedule(self, own: tuple[int, int], openings: Sequence[float]) -> tuple[int, int]:
        """Rounds of the solver, and their expected batch; `n_steps` counts the openings too."""
        rounds, batch = self.defaults.schedules.get(self.solver, own)
        return (rounds if self.n_steps is None else self.n_steps - len(openings)), batch

    def count(self) -> GaussianSteps:
        """Release of the number of usable records: a small share of the budget."""
        if not self.private:
            return GaussianSteps(0.0, 1.0, 1)
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        mu = gaussian_mu(float(self.epsilon), float(self.delta))
        return GaussianSteps(distance / (_COUNT_SHARE**0.5 * mu), 1.0, 1)

    def noise(
        self, n_steps: int, sampling_rate: float, schedule: Schedule | None = None
    ) -> Calibration:
        """Steps that are (epsilon, delta)-private together with the count."""
        return calibrate_noise(
            float(self.epsilon), float(self.delta), sampling_rate, n_steps, schedule, self.adjacency,
            along=(self.count(),),
        )  # fmt: skip

    def round_noise(
        self,
        openings: Sequence[float],
        n_steps: int,
        sampling_rate: float,
        schedule: Schedule | None = None,
    ) -> tuple[tuple[GaussianSteps, ...], tuple[GaussianSteps, ...], float]:
        """Steps of the openings, steps of the rounds, and the multiplier that `schedule` is relative to.

        Parameters
        ----------
        openings : sequence of float
            Budget shares of releases before the rounds, which have the rest.
        """
        if not openings:
            noise = self.noise(n_steps, sampling_rate, schedule)
            return (), noise.steps, noise.noise_multiplier
        rounds = schedule or [(1.0, n_steps)]
        spent = sum(count / size**2 for size, count in rounds)
        factor = (spent / (1 - sum(openings))) ** 0.5
        whole = [(share**-0.5, 1) for share in openings]
        whole += [(factor * size, count) for size, count in rounds]
        noise = self.noise(n_steps + len(openings), sampling_rate, whole)
        n = len(openings)
        return noise.steps[:n], noise.steps[n:], factor * noise.noise_multiplier

    def spec(self, steps: tuple[GaussianSteps, ...], n_chains: int = 1) -> MechanismSpec:
        """What the mechanism does."""
        from skdpbayes.mechanism.spec import MechanismSpec

        spec = MechanismSpec(steps, n_chains, self.numerics)
        if not self.private and spec.least_noise >= LEAST_ACCOUNTED:
            # The noise of a sampler has an epsilon, which an exact count would void.
            return spec
        return replace(spec, count=self.count())

    def refuse(self, *names: str) -> None:
        """Raise if one of the parameters is set, which releases of statistics do not take."""
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} needs another solver: solver='vips' releases "
                    "bounded statistics of all records."
                )

    def refuse_private_n(self) -> None:
        """Raise if the number of records is private."""
        if self.adjacency == "add_remove":
            raise ValueError(
                "solver='vips' takes the number of records as known, which adjacency='add_remove' "
                "keeps private. Use adjacency='zero_out' if it may be known, or another solver, "
                "with a sampling_rate."
            )
