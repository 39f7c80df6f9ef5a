"""Private sigmoid belief networks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import expit, logit, ndtri
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number, warn_user
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._densities import DensityScoreMixin
from skdpbayes.estimators._posterior import DecompositionEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.documents import Probabilities, known_probabilities
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Defaults, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_BLOCK = 1000  # rows predicted at a time


class DPSigmoidBeliefNet(DensityScoreMixin, DecompositionEstimator):
    """Sigmoid belief network with one hidden layer, under (epsilon, delta)-differential privacy.

    A generative model of binary rows, instead of `sklearn.neural_network.BernoulliRBM`. Hidden
    units are independent Bernoulli variables, and the logit of each visible unit's probability is
    linear in the hidden units. The guarantee is that of `DPBayesianLogisticRegression`. `sample` is
    private; `transform`, `score_samples` and `reconstruct` do not protect the rows that they are
    given.

    Parameters
    ----------
    n_components : int, default=50
        Number of hidden units.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of rows.
    solver : {"vips", "dpvi", "na-dpvi", "sgld"}, default="vips"
        "vips" releases sums of expected statistics in rounds. The others release scores, which are
        shorter and need less noise: "dpvi" at draws of its guide; "na-dpvi" at the posterior mean,
        each round weighted by its variance; "sgld" along a chain that the privacy noise drives.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private too, and
        `sampling_rate` must be given.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise. "secure" is integer arithmetic, for which the guarantee is
        proved. "fast" is floating point: the proof assumes exact arithmetic, and an adversary who
        knows all other rows may learn from the last bits of a release.
    max_rows_per_person : int, default=None
        Largest number of rows of a person. It makes the person the unit of privacy: `fit` takes the
        persons' names as `groups`, and keeps at most this many rows of each, evenly spaced. None:
        the row is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    sampling_rate : float, default=None
        Probability with which each row enters a round. None: 1.
    n_steps : int, default=None
        Number of releases, including the first, the mean of all rows. None: 6
        ("vips"), 11 ("dpvi", "na-dpvi") or 21 ("sgld"); without noise 31, 35 or 45.
    n_posterior_samples : int, default=100
        Number of posterior draws in `posterior_samples_`.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only.

    Attributes
    ----------
    components_ : array of shape (n_components, n_features)
        Posterior mean of the weights.
    intercept_visible_ : array of shape (n_features,)
        Logits of the visible units if all hidden units are off.
    intercept_hidden_ : array of shape (n_components,)
        Logits of the hidden units.
    posterior_ : WeightsPosterior
        Posterior of weights and centred intercepts about one optimum, flattened, with ``mean`` and
        ``sample``. It has no ``std``, and there is no `summary`: other fits end at other optima,
        which intervals of single weights would leave out. See `visible_interval`.
    posterior_samples_ : dict
        `n_posterior_samples` draws of `sample_posterior`, computed at each access.
    n_iter_ : int
        Number of releases.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Standard deviation of the noise in the averaged sums.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Values of X are clipped to [0, 1] and treated as probabilities. A row with NaN or infinity
    contributes nothing in `fit`, without a warning.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPSigmoidBeliefNet
    >>> rng = np.random.default_rng(0)
    >>> parts = rng.random((5000, 2)) < 0.5
    >>> X = rng.random((5000, 20)) < np.where(np.repeat(parts, 10, axis=1), 0.9, 0.1)
    >>> model = DPSigmoidBeliefNet(2, epsilon=1.0).fit(X)
    >>> model.transform(X[:3]).shape
    (3, 2)
    >>> bool((model.reconstruct(X).round() == X).mean() > 0.65)  # half of them without hidden units
    True
    """

    _defaults = Defaults(
        rounds=(5, 30),
        solver_rounds={"dpvi": (10, 34), "na-dpvi": (10, 34), "sgld": (20, 44)},
        opening_shares=(0.15,),
        opening_words="one release goes",
    )
    _opaque = True  # hidden units have no order, and fits end at different optima
    _dims: ClassVar = {"components": ("component", "feature"), "intercept_visible": ("feature",)}
    _estimated = ("components", "intercept_visible")
    _fitted = (*DecompositionEstimator._fitted, "intercept_visible_", "intercept_hidden_")

    def __init__(
        self,
        n_components: int = 50,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        n_posterior_samples: int = 100,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the posterior to private rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Zeros and ones.
        y : ignored
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a row.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.belief_net import SigmoidBeliefNet

        return (SigmoidBeliefNet,)

    def _reader(self) -> Reader:
        return Probabilities(marked=True)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.belief_net import SigmoidBeliefNet

        private = np.float32(math.isfinite(self.epsilon))
        model = SigmoidBeliefNet(facts.n_features, int(self.n_components), private)
        return Task(model, Bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        super()._finish(plan, outcome)
        weights, active = self.posterior_.weights, self.posterior_.active
        self.components_ = weights.T
        self.intercept_visible_ = self.posterior_.intercept - weights @ active
        self.intercept_hidden_ = logit(active)

    def sample_posterior(
        self, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Posterior draws of the weights and the visible units' intercepts.

        Parameters
        ----------
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : dict
            ``"components"`` and ``"intercept_visible"``: draws shaped like the attributes, with a
            first axis of length `n_samples`.
        """
        draws = self._fresh_draws(n_samples, random_state)
        draws = draws.reshape(n_samples, -1, len(self.components_) + 1)
        weights, centred = draws[:, :, :-1], draws[:, :, -1]
        visible = centred - weights @ self.posterior_.active.astype(np.float32)
        return {"components": np.swapaxes(weights, 1, 2), "intercept_visible": visible}

    # --------------------------------------------------------------------- rows

    def transform(self, X: Any) -> np.ndarray:
        """Mean-field probabilities that the hidden units are on, given rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected. A row with NaN or infinity has the prior probabilities, with a warning.

        Returns
        -------
        probabilities : array of shape (n_samples, n_components)
        """
        return self._hidden_and_bound(X)[0]

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Probabilities of the visible units given hidden units, (n_samples, n_features)."""
        check_is_fitted(self)
        return expit(np.asarray(X, np.float64) @ self.components_ + self.intercept_visible_)

    def reconstruct(self, X: Any) -> np.ndarray:
        """Probabilities of the visible units at the hidden probabilities of rows, shaped like X."""
        return self.inverse_transform(self.transform(X))

    def visible_interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Intervals of the probabilities of the visible units in the population of rows.

        They follow from the first release alone, the mean of all rows, which does not depend on
        the optimum that a fit ends at. They include the privacy noise.

        Parameters
        ----------
        level : float, default=0.9
            Mass of the equal-tailed intervals, in (0, 1).

        Returns
        -------
        low, high : arrays of shape (n_features,)
            Clipped to [0, 1].
        """
        check_is_fitted(self)
        check_number("level", level, 0, 1, open_above=True)
        reach = ndtri((1 + level) / 2) * self.posterior_.visible_std
        middle = self.posterior_.visible
        return (middle - reach).clip(0, 1), (middle + reach).clip(0, 1)

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(2)

    def score_samples(self, X: Any) -> np.ndarray:
        """Lower bound of the log-likelihood of each row, in nats.

        The bound is that of Jaakkola and Jordan, with a tangent for each row and visible unit, and
        mean-field hidden units.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected.

        Returns
        -------
        bound : array of shape (n_samples,)
            NaN for a row with NaN or infinity.
        """
        return self._hidden_and_bound(X)[1]

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Private synthetic rows of zeros and ones, of shape (n_samples, n_features).

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        hidden = rng.random((n_samples, len(self.components_))) < expit(self.intercept_hidden_)
        visible = rng.random((n_samples, self.n_features_in_)) < self.inverse_transform(hidden)
        return visible.astype(np.int8)

    def _hidden_and_bound(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Hidden probabilities and the bound of each row."""
        check_is_fitted(self)
        rows, known = known_probabilities(self._reader().numeric(self, X, reset=False))
        if not known.all():
            warn_user(f"{(~known).sum()} of these rows hold NaN or infinity.")
        hidden, bound = np.empty((len(rows), len(self.components_))), np.empty(len(rows))
        for start in range(0, len(rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            hidden[part], bound[part] = self._mean_field(rows[part].astype(np.float64))
        hidden[~known], bound[~known] = expit(self.intercept_hidden_), np.nan
        return hidden, bound

    def _mean_field(self, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Hidden probabilities of each row, and the bound there.

        All units are updated at once, so the steps are damped.
        """
        weights, prior = self.components_.T, self.intercept_hidden_
        squares, given = weights**2, (y - 0.5) @ weights + prior
        logits = np.broadcast_to(prior, given.shape)
        for step in [0.4] * 20 + [0.25] * 20 + [0]:  # the last step evaluates the final logits
            hidden = expit(logits)
            mean = hidden @ weights.T + self.intercept_visible_
            root = np.sqrt(mean**2 + (hidden * (1 - hidden)) @ squares.T)
            slope = np.tanh(root.clip(1e-3) / 2) / (2 * root.clip(1e-3))
            wanted = given - (slope * mean) @ weights + (hidden - 0.5) * (slope @ squares)
            logits = logits + step * (wanted - logits)
        bound = ((y - 0.5) * mean - root / 2 - np.log1p(np.exp(-root))).sum(axis=1)
        entropy = np.logaddexp(0, logits) - hidden * logits
        return hidden, bound + (entropy + hidden * prior - np.logaddexp(0, prior)).sum(axis=1)
