"""Private rates of exponential waiting times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import special, stats

from skdpbayes.checks import check_number
from skdpbayes.estimators._families import FamilyEstimator, described
from skdpbayes.facts import Facts
from skdpbayes.plans.settings import Bounds, Settings, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan


@described
class DPGammaExponential(FamilyEstimator):
    """Exponential waiting times with a Gamma prior on their rates, under differential privacy.

    ``x_j ~ Exponential(rate_j)``, ``rate_j ~ Gamma(prior_shape, prior_rate)``, independently for
    each feature. The likelihood accounts for the censoring of values above `upper`, which therefore
    causes no bias if times are exponential. If they are not, the rate is that of times up to
    `upper`: a bound beyond nearly all of them gives that of the mean.

    Parameters
    ----------
    {parameters}
    prior_shape, prior_rate : float, default=1.0
        Shape and rate of the Gamma prior, whose mean is their ratio. They set the units of the
        data, so the defaults rarely fit.
    upper : float, default=None
        Public bound at which values are censored. None takes the bound with the narrowest expected
        posterior under the prior, without looking at the data.
    {solver}

    Attributes
    ----------
    rate_ : array of shape (n_features,)
        Posterior mean.
    upper_ : float
        Censoring bound of the fit.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> X = np.random.default_rng(0).exponential(1 / 4, size=(5000, 1))
    >>> model = DPGammaExponential(epsilon=1.0, prior_shape=8.0, prior_rate=2.0).fit(X)
    >>> bool(abs(model.rate_[0] - 4) < 0.5)
    True
    >>> model.sample(3).shape
    (3, 1)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        prior_shape: float = 1.0,
        prior_rate: float = 1.0,
        upper: float | None = None,
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
        self.prior_shape = prior_shape
        self.prior_rate = prior_rate
        self.upper = upper
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

    _draws_name = "rate"
    _estimated = _positive = ("rate",)
    _dims: ClassVar = {"rate": ("feature",)}
    _fitted = (*FamilyEstimator._fitted, "rate_", "upper_")

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import GammaExponential

        return (GammaExponential,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import GammaExponential

        check_number("prior_shape", self.prior_shape, 0, 1e6)
        check_number("prior_rate", self.prior_rate, 0, 1e30)
        check_number("upper", self.upper, 0, 1e30, none=True)
        upper = float(self.upper) if self.upper is not None else self._best_upper(facts)
        d = facts.n_features
        model = GammaExponential(
            d, np.float32(self.prior_shape), np.float32(self.prior_rate), np.float32(upper)
        )
        most = stats.gamma(self.prior_shape, scale=1 / self.prior_rate).ppf(0.999)
        score, curvature = model.bounds(most)
        return Task(model, Bounds(score, curvature, self.prior_shape))

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(self.upper or 2 * self.prior_rate / self.prior_shape)

    def _best_upper(self, facts: Facts) -> float:
        """Bound with the largest posterior precision of the log rate, averaged over the prior."""
        prior = stats.gamma(self.prior_shape, scale=1 / self.prior_rate)
        rates = prior.ppf((np.arange(64) + 0.5) / 64)[:, None]
        rates = np.maximum(rates, 1e-6 * rates[-1])  # nearly improper priors reach down to zero
        n = facts.n_rows
        if n is None:  # information and noise cannot be compared
            return 2 * self.prior_rate / self.prior_shape
        upper = np.geomspace(0.05 / rates[-1, 0], 40 / rates[0, 0], 400)
        t = rates * upper
        information = -np.expm1(-t) - t * np.exp(-t)  # -(d mean / d log rate) * rate
        square = 2 * special.gammainc(2, t)
        variance = np.maximum(square - np.expm1(-t) ** 2, 0)
        one = Settings.of(self._parameters(), self._defaults).noise(1, 1.0).noise_multiplier
        noise = one * t / 2 * math.sqrt(facts.n_features)
        precision = (n * information) ** 2 / (n * variance + noise**2) + self.prior_shape
        gain = np.log(precision).mean(axis=0)
        # Of nearly equal bounds the smallest, since float32 sums lose values far below the bound.
        return float(upper[np.argmax(gain >= gain.max() - 0.005)])

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del facts
        return {"upper": float(model.upper)}

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.rate_ = draws, draws.mean(axis=0)
        self.upper_ = float(plan.model.upper)

    def _log_densities(self, X: Any) -> np.ndarray:
        rates = self.posterior_samples_.T
        log = np.log(rates).sum(axis=0) - np.where(X < 0, 0, X) @ rates
        return np.where((X < 0).any(axis=1, keepdims=True), -np.inf, log)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        return rng.exponential(1 / parameters)
