"""Private probabilities of binary features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from skdpbayes.checks import check_number
from skdpbayes.estimators._families import FamilyEstimator, described
from skdpbayes.facts import Facts
from skdpbayes.plans.settings import Bounds, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan


@described
class DPBetaBernoulli(FamilyEstimator):
    """Binary features with Beta priors on their probabilities, under differential privacy.

    ``x_j ~ Bernoulli(probability_j)``, ``probability_j ~ Beta(prior_a, prior_b)``, independently
    for each feature. Values above 1/2 count as 1.

    Parameters
    ----------
    {parameters}
    prior_a, prior_b : float, default=1.0
        Parameters of the Beta prior.
    {solver}

    Attributes
    ----------
    probability_ : array of shape (n_features,)
        Posterior mean.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> X = np.random.default_rng(0).random((5000, 1)) < 0.3
    >>> model = DPBetaBernoulli(epsilon=1.0).fit(X)
    >>> bool(abs(model.probability_[0] - 0.3) < 0.05)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        prior_a: float = 1.0,
        prior_b: float = 1.0,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        guide: str = "auto",
        step_schedule: str = "constant",
        n_chains: int = 1,
        n_posterior_samples: int = 1000,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.prior_a = prior_a
        self.prior_b = prior_b
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.guide = guide
        self.step_schedule = step_schedule
        self.n_chains = n_chains
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _draws_name = "probability"
    _estimated = _positive = ("probability",)
    _dims: ClassVar = {"probability": ("feature",)}
    _fitted = (*FamilyEstimator._fitted, "probability_")

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(2)

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import BetaBernoulli

        return (BetaBernoulli,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import BetaBernoulli

        check_number("prior_a", self.prior_a, 0, 1e6)
        check_number("prior_b", self.prior_b, 0, 1e6)
        model = BetaBernoulli(facts.n_features, np.float32(self.prior_a), np.float32(self.prior_b))
        score, curvature = model.bounds()
        a, b = self.prior_a, self.prior_b
        return Task(model, Bounds(score, curvature, a * b / (a + b)))

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.probability_ = draws, draws.mean(axis=0)

    def _log_densities(self, X: Any) -> np.ndarray:
        p = np.clip(self.posterior_samples_.T, 1e-300, 1 - 1e-16)
        ones = np.where(np.isnan(X), np.nan, X > 0.5)
        return ones @ np.log(p) + (1 - ones) @ np.log1p(-p)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        return (rng.random(parameters.shape) < parameters).astype(np.int64)
