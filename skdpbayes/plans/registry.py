"""Registry of the solvers; every list of solvers reads it.

A solver is offered for a model if one of its ways takes that kind of model. To add a solver, write
a plan (a function of settings, model, bounds and the number of records that returns a `Planned`)
and `register` an entry. To add a model, give it the methods that a way requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from skdpbayes.models.belief_net import SigmoidBeliefNet
from skdpbayes.models.families import ConjugateFamily
from skdpbayes.models.grouped import GroupedLogistic
from skdpbayes.models.lda import LatentDirichletAllocation
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.moments import ColumnMoments
from skdpbayes.models.networks.autoencoder import Autoencoder
from skdpbayes.models.networks.perceptron import Classifier, Regressor
from skdpbayes.models.protocols import HasNormalPrior
from skdpbayes.models.rescaled import RescaledLinear
from skdpbayes.models.score_unit import AmortisedStart, WithScoreUnit
from skdpbayes.models.whitened import WhitenedLogistic
from skdpbayes.plans.gradients import (
    marginal_shape,
    plan_amortised,
    plan_aware_sgld,
    plan_guided,
    plan_na_dpvi,
    plan_point,
    plan_rescaled,
    plan_sgld,
    plan_whitened,
    recalibrated,
)
from skdpbayes.plans.settings import Bounds, PlanFunction, Planned, Settings
from skdpbayes.plans.statistics import (
    opening_shares,
    plan_family,
    plan_logistic,
    plan_moments,
    plan_net_dpvi,
    plan_net_na_dpvi,
    plan_net_sgld,
    plan_rounds,
    plan_sums,
    plan_topics_dpvi,
    plan_topics_na_dpvi,
    plan_topics_sgld,
)
from skdpbayes.privacy.accounting import GaussianSteps
from skdpbayes.solvers.opened import Opened

_FIRST_LOOK = 0.02  # budget share of an opening that is made again
_LOCATING = 0.15  # share of the rounds after which scores are looked at again


@runtime_checkable
class HasLikelihood(Protocol):
    """A model with a likelihood and a prior, whose scores gradient solvers release."""

    def log_likelihood(self, params: Any, record: Any) -> Any:
        """Log-likelihood of one record."""

    def log_prior(self, params: Any) -> Any:
        """Log density of the prior."""


@runtime_checkable
class HasGaussianPrior(HasLikelihood, HasNormalPrior, Protocol):
    """A model with a likelihood and an independent normal prior."""


@runtime_checkable
class HasNoisyPosterior(Protocol):
    """A model with an exact posterior given a noisy sum of statistics."""

    def noisy_posterior(self, total: Any, scale: Any, n_records: Any) -> Any:
        """Exact posterior."""


@runtime_checkable
class HasStatistics(Protocol):
    """A model with local latent variables, whose expected statistics are released in rounds."""

    def m_step(self, params: Any, sums: Any, scales: Any) -> Any:
        """Parameters given noisy sums."""


@runtime_checkable
class HasMarginal(Protocol):
    """A model that has a likelihood once openings have found starting values."""

    def openings(self) -> Any:
        """Releases that find starting values."""

    def marginal(self, params: Any) -> Any:
        """Model with the latent variables summed out, near the starting values."""


@runtime_checkable
class HasAmortisedGuide(Protocol):
    """A model with a guide that draws the latent variables of a record."""

    def guided(self, latent: Any, batch: Any, key: Any) -> Any:
        """Sites of the guide."""


def opened(plan: PlanFunction, kind: type) -> PlanFunction:
    """Plan of a gradient solver that starts at the result of a model's openings.

    The model's marginal must be of the kind that the solver takes.
    """

    def planned(settings: Settings, model: Any, bounds: Bounds, n: int | None) -> Planned:
        again = isinstance(model, WithScoreUnit) and model.looks_again
        openings = opening_shares(settings, len(model.openings()) + again)
        if again:
            openings = (_FIRST_LOOK, *openings)
        if openings and settings.n_chains > 1:
            raise ValueError(
                "A model's start is found in one chain: with n_chains above 1, pass clipping_norm "
                "if that is what the start finds, else take n_chains=1."
            )
        # A guide of the user's needs the model itself, other plans its shapes alone.
        whole = isinstance(model, WithScoreUnit)
        marginal = model.marginal(model.init()) if whole else marginal_shape(model)
        if not isinstance(marginal, kind):
            raise ValueError(
                f"solver={settings.solver!r} needs a model that is a {kind.__name__}; the marginal "
                f"of {type(model).__name__} is none."
            )
        found = plan(settings, marginal, bounds, n, openings)
        solver = Opened(found.solver, np.int32(len(openings)))
        if again:
            steps, at = _looking_again(found.spec.steps)
            solver = Opened(found.solver, np.int32(1), np.int32(at))
            found = found._replace(spec=replace(found.spec, steps=steps))
        found = found._replace(solver=solver)
        if isinstance(model, WithScoreUnit) and model.found:
            found = found._replace(clipping_norm=None)  # the opening finds its unit
        return found

    return planned


def _looking_again(steps: tuple[GaussianSteps, ...]) -> tuple[tuple[GaussianSteps, ...], int]:
    """Steps whose second release comes after `_LOCATING` of the rounds, and its index.

    With fewer than seven rounds it comes before them.
    """
    first, second, *rounds = steps
    early, late, left = [], [], int(_LOCATING * sum(piece.steps for piece in rounds))
    at = 1 + left
    for piece in rounds:
        taken = min(piece.steps, left)
        left -= taken
        if taken:
            early.append(replace(piece, steps=taken))
        if taken < piece.steps:
            late.append(replace(piece, steps=piece.steps - taken))
    return (first, *early, second, *late), at


@dataclass(frozen=True)
class SolverEntry:
    """Entry of a solver in the registry.

    Attributes
    ----------
    name : str
        Value of the parameter `solver`.
    summary : str
        Description in one sentence.
    ways : tuple of (type, function)
        Kinds of models that it takes, most specific first, with a plan for each.
    parameters : frozenset of str
        Parameters in `SPECIAL` that it takes.
    """

    name: str
    summary: str
    ways: tuple[tuple[type, PlanFunction], ...]
    parameters: frozenset[str] = frozenset()

    def way(self, model: type) -> PlanFunction | None:
        """Plan for a class of models; None if the solver does not take them."""
        return next((plan for kind, plan in self.ways if issubclass(model, kind)), None)


# Parameters that only some solvers take, with the values that mean "not set".
SPECIAL: dict[str, Any] = {
    "guide": "auto",
    "step_schedule": "constant",
    "n_chains": 1,
    "sampler": "sgld",
    "prior_df": "auto",
}

SOLVERS: dict[str, SolverEntry] = {}


def register(entry: SolverEntry) -> None:
    """Add a solver.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if entry.name in SOLVERS:
        raise ValueError(f"There is a solver {entry.name!r} already.")
    SOLVERS[entry.name] = entry


def _gradient(plan: PlanFunction, kind: type, *special: tuple[type, PlanFunction]) -> Any:
    family = (ConjugateFamily, plan_family(plan))
    return (*special, family, (HasMarginal, opened(plan, kind)), (kind, plan))


register(
    SolverEntry(
        "dpvi",
        "Variational inference with a Gaussian posterior, on private gradients.",
        _gradient(
            plan_guided,
            HasGaussianPrior,
            (Autoencoder, plan_point),
            (Regressor, plan_guided),
            (Classifier, recalibrated(plan_guided)),
            (AmortisedStart, opened(plan_amortised, HasAmortisedGuide)),
            (LatentDirichletAllocation, plan_topics_dpvi),
            (SigmoidBeliefNet, plan_net_dpvi),
        ),
        frozenset({"guide"}),
    )
)
register(
    SolverEntry(
        "na-dpvi",
        "The normal posterior given all that the noisy scores and curvatures say.",
        _gradient(
            plan_na_dpvi,
            HasGaussianPrior,
            (WhitenedLogistic, plan_whitened),
            (GroupedLogistic, plan_whitened),
            (RescaledLinear, plan_rescaled),
            (LatentDirichletAllocation, plan_topics_na_dpvi),
            (SigmoidBeliefNet, plan_net_na_dpvi),
        ),
        frozenset({"prior_df"}),
    )
)
register(
    SolverEntry(
        "sgld",
        "Langevin dynamics whose noise is the privacy noise.",
        _gradient(
            plan_sgld,
            HasLikelihood,
            (WhitenedLogistic, plan_aware_sgld),
            (LogisticRegression, plan_aware_sgld),
            (Regressor, plan_sgld),
            (Classifier, recalibrated(plan_sgld)),
            (LatentDirichletAllocation, plan_topics_sgld),
            (SigmoidBeliefNet, plan_net_sgld),
        ),
        frozenset({"step_schedule", "n_chains", "sampler"}),
    )
)
register(
    SolverEntry(
        "vips",
        "Noisy sufficient statistics: one release, or rounds of expected ones.",
        (
            (WhitenedLogistic, plan_whitened),
            (LogisticRegression, plan_logistic),
            (ColumnMoments, plan_moments),
            (HasNoisyPosterior, plan_sums),
            (HasStatistics, plan_rounds),
        ),
        frozenset({"prior_df"}),
    )
)


def solvers_for(model: type) -> tuple[str, ...]:
    """Names of the solvers that take a class of models."""
    return tuple(name for name, entry in SOLVERS.items() if entry.way(model) is not None)


def planned(settings: Settings, model: Any, bounds: Bounds, n: int | None) -> Planned:
    """Solver and mechanism for a model.

    Raises
    ------
    ValueError
        If the solver does not take the model; the error names both, and the solvers that do.
    """
    plan = SOLVERS[settings.solver].way(type(model))
    if plan is None:
        raise ValueError(
            f"solver={settings.solver!r} does not take a {type(model).__name__}: "
            f"{', '.join(map(repr, solvers_for(type(model))))} do."
        )
    return plan(settings, model, bounds, n)


def check_special(solver: str, parameters: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if a parameter is set that only other solvers take."""
    own = SOLVERS[solver].parameters
    for name, default in SPECIAL.items():
        value = parameters.get(name, default)
        unset = value is None or np.array_equal(value, default)
        if name not in own and not unset:
            needed = [other.name for other in SOLVERS.values() if name in other.parameters]
            raise ValueError(
                f"{name}={value!r} needs solver={' or '.join(map(repr, needed))}; "
                f"{solver!r} has no such parameter."
            )
