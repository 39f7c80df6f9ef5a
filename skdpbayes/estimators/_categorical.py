"""Private probabilities of a categorical column."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from skdpbayes.estimators._families import FamilyEstimator, described
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import CategoryColumn
from skdpbayes.intake.labels import codes
from skdpbayes.plans.settings import Bounds, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan


@described
class DPDirichletCategorical(FamilyEstimator):
    """One categorical column with a Dirichlet prior, under differential privacy.

    Parameters
    ----------
    {parameters}
    categories : array-like of shape (n_categories,) or Schema, default=None
        Public set of categories, or a `Schema` of one column. None takes the categories from X,
        which is not private: it warns, and `privacy_spent_` records that the guarantee does not
        hold. A row with another value contributes nothing.
    concentration : float or array-like of shape (n_categories,), default=1.0
        Concentration of the Dirichlet prior, in the order of `categories` (sorted, if they are
        taken from X).
    {solver}

    Attributes
    ----------
    categories_ : array of shape (n_categories,)
        Sorted categories.
    probability_ : array of shape (n_categories,)
        Posterior mean.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPDirichletCategorical
    >>> X = np.random.default_rng(0).choice(["a", "b", "c"], size=(5000, 1), p=[0.5, 0.3, 0.2])
    >>> model = DPDirichletCategorical(epsilon=1.0, categories=["a", "b", "c"]).fit(X)
    >>> bool(abs(model.probability_[0] - 0.5) < 0.05)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        categories: Any = None,
        concentration: ArrayLike = 1.0,
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
        self.categories = categories
        self.concentration = concentration
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
    _dims: ClassVar = {"probability": ("category",)}
    _fitted = (*FamilyEstimator._fitted, "probability_", "categories_")
    _declared = ("categories",)

    def _reader(self) -> CategoryColumn:
        return CategoryColumn(self.categories)

    def _log_volume(self, facts: Facts) -> float:
        return math.log(len(facts.own_labels()))

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import DirichletCategorical

        return (DirichletCategorical,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import DirichletCategorical

        labels = facts.own_labels()
        try:
            concentration = np.broadcast_to(np.asarray(self.concentration, np.float32), len(labels))
        except ValueError:
            raise ValueError(
                "concentration must be a number or one for each category, got "
                f"{self.concentration!r}."
            ) from None
        public = self._reader().public()
        if public is not None:  # `categories_` are sorted
            order = np.argsort(np.asarray(np.asarray(public).tolist()), kind="stable")
            concentration = concentration[order]
        if not (np.isfinite(concentration) & (concentration > 0)).all():
            raise ValueError(f"concentration must be positive, got {self.concentration!r}.")
        model = DirichletCategorical(concentration.copy())
        score, curvature = model.bounds()
        return Task(model, Bounds(score, curvature, float(np.min(model.prior_precision()))))

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del model
        return {"categories": [str(label) for label in facts.own_labels()]}

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.probability_ = draws, draws.mean(axis=0)
        self.categories_ = plan.facts.own_labels()

    def _check_rows(self, X: Any) -> np.ndarray:
        return codes(self._reader().column(self, X, reset=False), self.categories_)

    def _log_densities(self, X: Any) -> np.ndarray:
        with np.errstate(divide="ignore"):
            log = np.log(self.posterior_samples_)
        return np.where(X[:, None] >= 0, log[:, X].T, -np.inf)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        chosen = (rng.random((len(parameters), 1)) > parameters.cumsum(axis=1)[:, :-1]).sum(axis=1)
        return self.categories_[chosen][:, None]
