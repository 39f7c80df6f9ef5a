"""Private hierarchical logistic regression, as a NumPyro program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.declarations import declared_labels, schema_of
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._classes import (
    BayesianClassifierMixin,
    class_probabilities,
    warn_if_rows_weigh_little,
)
from skdpbayes.estimators._program import ProgramEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import norm_of
from skdpbayes.intake.groups import GroupedRows, place_of
from skdpbayes.plans.settings import Bounds, Settings, Task
from skdpbayes.privacy import PrivacyLedger
from skdpbayes.schema import Schema

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_SPREAD = 1.0  # of groups, where it is not learnt
_LEARNT_FROM = 25.0  # rows times epsilon, over weights: with fewer, noise passes for a spread
_LEAST_SPREAD = 1e-3  # of groups, over the length of their prior means
_LITTLE = 0.4  # mean weight of rows, below which `fit` warns: about `data_norm` it is .6 or more
_PREDICT_BLOCK = 2**22  # entries of the largest temporary of a prediction


def hierarchical_logistic(
    x: Any, group: Any, y: Any = None, *, group_features: Any, prior_scale: Any, group_scale: Any
) -> None:
    """Logistic regression with group weights whose prior mean is linear in group features.

    The model is that of Prediger et al. (2021), section 3.3, equation 5 and listing 4.
    ``group_scale=None`` gives the spread of the groups about the prior mean a half-normal prior of
    scale ``prior_scale``.
    """
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    d, (n_groups, k) = x.shape[1], group_features.shape
    effects = numpyro.sample("effects", dist.Normal(0.0, prior_scale).expand([d, k]).to_event(2))
    spread = group_scale
    if spread is None:
        spread = numpyro.sample("group_scale", dist.HalfNormal(prior_scale))
    with numpyro.plate("groups", n_groups):
        weights = numpyro.sample(
            "weights", dist.Normal(group_features @ effects.T, spread).to_event(1)
        )
    with numpyro.plate("data", len(x)):
        logits = jnp.einsum("nd,nd->n", x, weights[group])
        numpyro.sample("y", dist.BernoulliLogits(logits), obs=y)


class DPHierarchicalLogisticRegression(BayesianClassifierMixin, ProgramEstimator):
    """Hierarchical binary logistic regression under (epsilon, delta)-differential privacy.

    Each group (hospital, country, school) has separate weights ``w_g ~ N(M z_g, group_scale^2)``,
    whose prior mean is linear in the group's features ``z_g``, with ``M ~ N(0, prior_scale^2)``.
    Groups with few rows borrow strength from the others. Rows and their group memberships are
    private; the groups and their features are public.

    Parameters
    ----------
    groups : int, array-like of shape (n_groups,) or Schema
        Public set of groups. A number stands for ``0, 1, ...``, a schema for the categories of
        `group_column`. Rows of other groups contribute nothing; predictions for them use the prior
        mean at the average group features.
    group_features : array-like of shape (n_groups, n_group_features), default=None
        Public features of each group, in the order of `groups`; a constant is added. None: the
        constant alone.
    group_column : int or str, default=-1
        Position or name of the column of X that holds the group.
    epsilon, delta
        As in `DPBayesianLogisticRegression`.
    solver : {"auto", "na-dpvi", "dpvi", "sgld"}, default="auto"
        "auto" is "na-dpvi" up to 300 weights, and "dpvi" above, without an intercept, with
        `epsilon` infinite, and with a `guide` or `learning_rate`.
    adjacency, numerics, ledger
        As in `DPBayesianLogisticRegression`.
    classes : array-like of shape (2,), Schema or Outcome, default=None
        Public set of labels. A `Schema` describes X too; its ``outcome`` describes y alone. None
        takes the labels from y, which is not private: it warns, and `privacy_spent_` records that
        the guarantee does not hold. A row with another label contributes nothing.
    data_norm : float, default=None
        Public norm of a typical row, without its group. Rows are cut at 1024 times this norm; long
        ones lose weight where their scores exceed the clipping norm. None: the square root of the
        number of features.
    fit_intercept : bool, default=True
        Whether each group has an intercept.
    prior_scale : float, default=2.5
        Prior standard deviation of the effects of group features on weights.
    group_scale : float or "auto", default="auto"
        Standard deviation of a group's weights about their prior mean. None: it is learnt, with a
        half-normal prior of scale `prior_scale`. "auto": it is learnt with `epsilon` infinite, and
        by "na-dpvi" if rows (a public number) times `epsilon` are at least 25 times the number of
        weights; otherwise it is 1, since noise would make it too large, and too small by "dpvi".
    clipping_norm : float, default=None
        As in `DPBayesianLogisticRegression` where "auto" is "na-dpvi", else as in `DPNumPyroModel`.
    sampling_rate, n_steps, learning_rate, guide, step_schedule, n_chains, n_posterior_samples
        As in `DPNumPyroModel`.
    random_state, verbose
        As in `DPBayesianLogisticRegression`.

    Attributes
    ----------
    coef_ : array of shape (n_groups, n_features)
        Posterior mean of the weights of each group; `n_features` excludes the column of groups.
    intercept_ : array of shape (n_groups,)
        Posterior mean of the intercepts.
    classes_, groups_ : arrays
        Sorted labels of classes and of groups.
    posterior_samples_ : dict
        Draws of ``"weights"``, ``"effects"`` and, if it is learnt, ``"group_scale"``.
    posterior_, privacy_spent_, diagnostics_, n_iter_, n_features_in_, feature_names_in_
        As in `DPNumPyroModel`.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPHierarchicalLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> group, x = rng.integers(0, 3, 3000), rng.normal(size=(3000, 2))
    >>> logits = (x * np.array([[2, 0], [1, 1], [0, 2]])[group]).sum(axis=1)
    >>> y = (logits + rng.logistic(size=3000) > 0).astype(int)
    >>> model = DPHierarchicalLogisticRegression(3, epsilon=2.0, classes=[0, 1])
    >>> model = model.fit(np.column_stack([x, group]), y)
    >>> model.coef_.shape
    (3, 2)
    """

    def __init__(
        self,
        groups: Any,
        group_features: ArrayLike | None = None,
        group_column: int | str = -1,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        solver: str = "auto",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        classes: Any = None,
        data_norm: float | None = None,
        fit_intercept: bool = True,
        prior_scale: float = 2.5,
        group_scale: float | Literal["auto"] | None = "auto",
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
        self.groups = groups
        self.group_features = group_features
        self.group_column = group_column
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.classes = classes
        self.data_norm = data_norm
        self.fit_intercept = fit_intercept
        self.prior_scale = prior_scale
        self.group_scale = group_scale
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

    _automatic = ("auto",)
    _positive = ("group_scale",)
    _log_odds = ("weights", "effects")
    _dims: ClassVar = {"weights": ("group", "column"), "effects": ("column", "group_feature")}
    _fitted = (
        *ProgramEstimator._fitted,
        "coef_",
        "intercept_",
        "classes_",
        "groups_",
        "data_norm_",
        "_table",
    )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features + 1)
        y : array-like of shape (n_samples,)
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes, dtypes and feature names, which are public. Never
            for the values in a row.
        """
        self._fit(X, y, groups)
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("prior_scale", self.prior_scale, 1e-6, 1e6, closed=True)
        if self.group_scale != "auto":
            check_number("group_scale", self.group_scale, 1e-6, 1e6, none=True, closed=True)

    def _reader(self) -> GroupedRows:
        return GroupedRows(
            schema_of(self.groups) or schema_of(self.classes),
            classes=self.classes,
            groups=self._groups_and_table()[0],
            group_column=self.group_column,
            data_norm=self.data_norm,
            intercept=bool(self.fit_intercept),
        )

    def _program(self, facts: Facts) -> tuple[Callable[..., Any], dict[str, Any]]:
        classes = facts.own_labels()
        if len(classes) != 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is multiclass, "
                f"with the classes {classes.tolist()}; write a DPNumPyroModel."
            )
        public = {
            "group_features": self._groups_and_table()[1],
            "prior_scale": self.prior_scale,
            "group_scale": self._spread(facts),
        }
        return hierarchical_logistic, public

    def _task(self, facts: Facts) -> Task:
        """With "na-dpvi", in coordinates in which groups and columns are about alike."""
        from skdpbayes.models.grouped import GroupedLogistic, prior_of
        from skdpbayes.models.logistic import LogisticRegression
        from skdpbayes.models.numpyro.reduced import Reduced

        task = super()._task(facts)
        hierarchy, n = task.model.model, facts.n_rows
        settings = self._settings(facts)
        simulated = self._can_simulate() and isinstance(hierarchy, Reduced)
        if not simulated or settings.solver != "na-dpvi":
            return task
        norm = math.hypot(self._norm(facts), 1)
        ones = np.ones(self._n_weights(facts), np.float32)
        rows = LogisticRegression(len(ones), 2, ones, row_norm=np.float32(norm), constant=True)
        model = GroupedLogistic(
            hierarchy,
            prior_of(hierarchy),
            rows,
            len(self._groups_and_table()[0]),
            np.float32(0.7 * norm),
            np.float32(np.inf if n is None else n * settings.most_rows),
            counted=n is None or settings.most_rows > 1,
        )
        return Task(model, Bounds(*rows.bounds(norm)), task.voided_by)

    def _settings(self, facts: Facts) -> Settings:
        from skdpbayes.plans.registry import check_special

        own = super()._settings(facts)
        if own.solver not in self._automatic:
            return own
        for_dpvi = own.guide != "auto" or own.learning_rate is not None
        large = self._n_weights(facts) > own.defaults.curvature_up_to
        other = for_dpvi or large or not self._can_simulate() or not self._reduces(facts)
        solver = "dpvi" if other else "na-dpvi"
        check_special(solver, self._parameters())
        return replace(own, solver=solver)

    def _can_simulate(self) -> bool:
        """Whether rows can be simulated: a constant column tells their scale."""
        return bool(self.fit_intercept) and math.isfinite(self.epsilon)

    def _reduces(self, facts: Facts) -> bool:
        """Whether `reduced` finds the coordinates of the weights: within its bounds."""
        from skdpbayes.models.numpyro.reduced import MOST_COORDINATES

        table = self._groups_and_table()[1]
        size = self._n_weights(facts)
        few = size + size // len(table) * table.shape[1] < MOST_COORDINATES
        # With hardly any spread, groups have hardly any weights of their own.
        least = _LEAST_SPREAD * float(self.prior_scale) * float(np.linalg.norm(table))
        given = None if self.group_scale == "auto" else self.group_scale
        return few and (given is None or given > least)

    def _spread(self, facts: Facts) -> float | None:
        """`group_scale`; None if it is learnt."""
        if self.group_scale != "auto":
            return self.group_scale
        if not math.isfinite(self.epsilon):
            return None
        known = (facts.n_rows or 0) * self.epsilon / self._n_weights(facts)
        learns = self._settings(facts).solver == "na-dpvi" and known >= _LEARNT_FROM
        return None if learns else _SPREAD

    def _n_weights(self, facts: Facts) -> int:
        """Weights of all groups."""
        groups = len(self._groups_and_table()[0])
        return groups * (facts.n_features - 1 + bool(self.fit_intercept))

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        groups, _ = self._groups_and_table()
        return super()._also_public(facts, model) | {"groups": len(groups)}

    def _norm(self, facts: Facts) -> float:
        return norm_of(self.data_norm, facts.n_features - 1)

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        super()._finish(plan, outcome)
        warn_if_rows_weigh_little(self.diagnostics_, _LITTLE)
        self._set_classes(plan.facts)
        self.groups_, self._table = self._groups_and_table()
        mean = self.posterior_samples_["weights"].mean(axis=0, dtype=float)
        d = mean.shape[1] - bool(self.fit_intercept)
        self.coef_ = mean[:, :d]
        self.intercept_ = mean[:, d] if self.fit_intercept else np.zeros(len(self.groups_))

    def _groups_and_table(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted labels of the groups, and their features with a constant column."""
        number = isinstance(self.groups, int | np.integer) and not isinstance(self.groups, bool)
        labels = np.arange(self.groups) if number else self.groups
        if isinstance(labels, Schema):
            own = labels.columns[place_of(self.group_column, list(labels.names))]
            if own.categories is None:
                raise ValueError(
                    f"groups: the schema gives no categories of the column of groups, {own.name!r}."
                )
            labels = list(own.categories)
        groups = declared_labels(labels, "groups")
        table = np.zeros((len(groups), 0))
        if self.group_features is not None:
            table = np.asarray(self.group_features, float)
        if table.ndim != 2 or len(table) != len(groups) or not np.isfinite(table).all():
            raise ValueError(
                "group_features must be finite, with one row for each of the "
                f"{len(groups)} groups; got an array of shape {table.shape}."
            )
        order = np.argsort(np.asarray(np.asarray(labels).tolist()), kind="stable")
        return groups, np.column_stack([table[order], np.ones(len(groups))]).astype(np.float32)

    def _coordinates(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        known = list(self._feature_names() or range(self.n_features_in_))
        columns = known if names is None else list(names)
        del columns[place_of(self.group_column, list(known))]
        return super()._coordinates(names) | {
            "column": columns + ["intercept"] * bool(self.fit_intercept),
            "group_feature": [*range(self._table.shape[1] - 1), "constant"],
        }

    # --------------------------------------------------------------- predicting

    def _over_rows(
        self,
        X: Any,
        summary: Callable[[np.ndarray], np.ndarray],
        draws: dict[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        check_is_fitted(self)
        x, group = self._reader().rows_and_groups(self, X, reset=False)
        rows = self._bounded(x, intercept=bool(self.fit_intercept))
        draws = self.posterior_samples_ if draws is None else draws
        unknown = draws["effects"].astype(float) @ self._table.mean(axis=0)
        # An unknown group has the code -1, so its weights come last.
        weights = np.concatenate([draws["weights"].astype(float), unknown[:, None]], axis=1)
        size, out = max(1, _PREDICT_BLOCK // weights[:, 0].size), []
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            logits = np.einsum("nd,snd->ns", rows[block], weights[:, group[block]])[..., None]
            out.append(summary(class_probabilities(logits)))
        return np.concatenate(out)
